"""Many devices and hosts: meshes, array layouts on them, and processes that start together."""

from .hosts import end_all, is_first_host, leave_others, several_hosts, start
from .mesh import (
    AXES,
    RULES,
    WHOLE,
    Rules,
    are_apart,
    fetch,
    make_draft_mesh,
    make_mesh,
    mesh_of,
    parse_mesh,
    place,
    sharding,
    use_mesh,
)
from .split import (
    each_part_of_heads,
    each_part_of_queries,
    each_part_of_rows,
    nodes_are_split,
    split_nodes,
    split_rows,
    sum_over_parts,
    weights_are_split,
    whole_features,
    whole_nodes,
)

__all__ = [
    "AXES", "RULES", "WHOLE", "Rules", "are_apart", "each_part_of_heads", "each_part_of_queries",
    "each_part_of_rows", "end_all", "fetch", "is_first_host",
    "leave_others", "make_draft_mesh", "make_mesh", "mesh_of", "nodes_are_split", "parse_mesh", "place",
    "several_hosts", "sharding", "split_nodes", "split_rows", "start", "sum_over_parts", "use_mesh",
    "weights_are_split", "whole_features", "whole_nodes",
]  # fmt: skip
