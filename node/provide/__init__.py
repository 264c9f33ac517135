"""Services made of inference, which run beside a node: `modelvine provide`. A crash of one takes no model along."""
