"""Online training of a head, from features that verification computes."""
