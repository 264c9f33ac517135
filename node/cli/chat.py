"""Talk to a model through the network; the answer appears as it is made.

Without PROMPT the prompt is read from standard input, or, at a terminal, line by line in a conversation: Ctrl-C stops
an answer, Ctrl-D ends. Which node answered, and how fast, is said on standard error.

Examples:
  modelvine chat tiny "Why is the sky blue?"
  modelvine chat demo/tiny --system "Answer in one line." < question.txt
  modelvine chat tiny
"""

import argparse

from node.cli.console.options import add_json, add_node_options


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="MODEL or PROJECT/MODEL")
    add("prompt", metavar="PROMPT", nargs="?", help="what to say")
    add("--project", metavar="P", default="", help="ask this project only")
    add("--system", metavar="TEXT", default="", help="what the model is told first")
    add("--max-tokens", metavar="N", type=int, help="tokens of the answer at most")
    add_node_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask once, or converse."""
    import sys  # noqa: PLC0415

    from node.cli.console.conversation import Conversation, converse, say_answer  # noqa: PLC0415
    from node.cli.console.locate import client  # noqa: PLC0415
    from node.errors import WrongUsage  # noqa: PLC0415

    conversation = Conversation(
        client(arguments),
        model=arguments.model,
        project=arguments.project,
        system=arguments.system,
        max_tokens=arguments.max_tokens,
    )
    if arguments.prompt is None and sys.stdin.isatty() and not arguments.json:
        converse(conversation)
        return 0
    prompt = sys.stdin.read() if arguments.prompt is None else arguments.prompt
    if not prompt.strip():
        raise WrongUsage("there is nothing to say: give a PROMPT, or write one to standard input")
    say_answer(conversation, prompt, as_json=arguments.json)
    return 0
