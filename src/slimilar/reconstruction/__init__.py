"""What the consumers of a removed channel do instead."""
