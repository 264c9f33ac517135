"""Chat with a model of the mesh; the answer is streamed.

PROMPT and piped standard input are sent together; each of them also works alone. Without both, at a terminal, a conversation
starts: arrow keys edit the line and recall earlier ones, Ctrl-C clears the line or stops an answer, Ctrl-C twice or Ctrl-D ends,
/help lists commands such as /set, /system and /save. The conversation is kept in memory only. Standard error shows which node
answered, and how fast.

Examples:
  modelvine chat tiny "Why is the sky blue?"
  modelvine chat demo/tiny --system "Answer in one line." < question.txt
  modelvine chat tiny "Summarise this." --temperature 0 < notes.txt
  modelvine chat painter "What is this?" --attach picture.png
  modelvine chat tiny "Count." --stop 4 --set top_k=1 --node gpu7
  modelvine chat tiny
"""

import argparse

from node.cli.console.options import add_json, add_node_options, number
from node.cli.console.worker_options import json_or_text


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="MODEL or PROJECT/MODEL")
    add("prompt", metavar="PROMPT", nargs="?", help="prompt")
    add("--project", metavar="P", default="", help="use this project only")
    add("--system", metavar="TEXT", default="", help="system prompt")
    add(
        "--attach",
        metavar="FILE",
        action="append",
        default=[],
        help="image to send with the prompt; repeatable",
    )
    _add_parameters(parser)
    add_node_options(parser, about="the one to answer")
    add_json(parser)


def _add_parameters(parser: argparse.ArgumentParser) -> None:
    """Declare the parameters that go into the request under the name of their flag."""
    add = parser.add_argument
    add("--max-tokens", metavar="N", type=int, help="maximum number of tokens of the answer")
    add("--temperature", metavar="T", type=number, help="sampling temperature; 0 is deterministic")
    add(
        "--top-p",
        metavar="P",
        type=number,
        help="nucleus sampling: share of the most likely tokens",
    )
    add("--seed", metavar="N", type=int, help="random seed")
    add("--stop", metavar="TEXT", action="append", help="stop string; repeatable")
    add("--frequency-penalty", metavar="X", type=number, help="penalty for frequent tokens")
    add("--presence-penalty", metavar="X", type=number, help="penalty for tokens that occurred")
    add(
        "--set",
        metavar="KEY=VALUE",
        type=json_or_text,
        action="append",
        default=[],
        help="another parameter of the request; VALUE is JSON or text; repeatable",
    )


_PARAMETERS = (
    "max_tokens", "temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty",
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Send one prompt, or start a conversation."""
    import sys  # noqa: PLC0415

    from node.cli.console.conversation import (  # noqa: PLC0415
        Conversation,
        image,
        say_answer,
        standard_input,
    )
    from node.cli.console.node_lookup import client_and_node  # noqa: PLC0415
    from node.errors import WrongUsage  # noqa: PLC0415

    options = vars(arguments)
    node, name = client_and_node(arguments)
    conversation = Conversation(
        node,
        model=arguments.model,
        project=arguments.project,
        node=name,
        system=arguments.system,
        parameters={name: options[name] for name in _PARAMETERS if options[name] is not None}
        | dict(arguments.set),
        attached=[image(file) for file in arguments.attach],
    )
    typed = sys.stdin.isatty()
    if arguments.prompt is None and typed and not arguments.json:
        from node.cli.console.conversation import converse  # noqa: PLC0415

        return converse(conversation)
    texts = [arguments.prompt or ""]
    if not (arguments.prompt and typed):
        texts.append(standard_input())
    prompt = "\n\n".join(text for text in texts if text.strip())
    if not prompt:
        raise WrongUsage("there is no prompt: pass PROMPT, or write it to standard input")
    say_answer(conversation, prompt, as_json=arguments.json)
    return 0
