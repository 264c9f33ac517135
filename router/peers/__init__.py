"""Links to other nodes: TLS bound to their keys, over an address or a mesh pipe, and the headers between nodes."""
