"""What becomes of a small swarm that is used, registered at and harmed for a long time?"""
