"""Provider of agents: turns of Llama Stack 0.0.1, over chats with tools. It executes no tool."""
