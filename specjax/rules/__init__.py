"""The acceptance rules, one file for each way to walk a tree; ``verify`` names them."""
