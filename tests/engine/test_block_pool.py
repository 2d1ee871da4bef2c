"""The numbers of blocks, against a model of sets: users are counted, and the least recently used leave first."""

import random

from specjax.engine.block_pool import BlockPool
from specjax.engine.prefix_cache import chain_keys


def test_random_rows_never_get_a_block_of_others():
    draw = random.Random(0)
    pool, rows, contents = BlockPool(12), [], {}
    for _ in range(3000):
        if rows and draw.random() < 0.5:
            keys, blocks = rows.pop(draw.randrange(len(rows)))
            pool.release(blocks)
        else:
            keys = [bytes([draw.randrange(3)])] * draw.randrange(5)
            keys = [b"".join(keys[: i + 1]) for i in range(len(keys))]
            shared = pool.share(keys)
            assert all(contents[block] == key for block, key in zip(shared, keys))
            own = pool.take(draw.randrange(4))
            if own is None:
                pool.release(shared)
                continue
            assert not {*own} & {block for _, blocks in rows for block in (*blocks, *shared)}
            rows.append((keys, shared + own))
            contents |= dict.fromkeys(own)
            contents |= dict(zip(shared + own, keys))
            pool.name(keys, shared + own)
        used = {block for _, blocks in rows for block in blocks}
        assert pool.used == len(used) and used <= {*range(1, 13)}
        free = pool.take(12 - len(used))
        assert free is not None and pool.take(1) is None
        pool.release(free)
        contents |= dict.fromkeys(free)


def test_the_least_recently_used_leave_first_and_the_end_of_a_row_before_its_beginning():
    pool = BlockPool(4)
    one, two = pool.take(2), pool.take(2)
    pool.name([b"a", b"ab"], one)
    pool.name([b"c", b"cd"], two)
    pool.release(one)
    pool.release(two)
    assert pool.share([b"a", b"ab", b"abc"]) == one  # now the newest
    pool.release(one)
    assert pool.take(1) == two[1:]
    assert pool.share([b"c", b"cd"]) == two[:1]
    assert pool.take(1) == one[1:] and pool.take(2) is None


def test_a_block_has_a_key_for_each_part_of_it():
    pool = BlockPool(2)
    block, other = pool.take(2)
    pool.name([b"a", b"ab"], [block, block])
    pool.name([b"a", b"ax"], [other, other])  # begins like the first
    assert [pool.find(key) for key in (b"a", b"ab", b"ax", b"b")] == [block, block, other, None]
    pool.name([b"a", b"ab", b"abc"], [block] * 3)  # it holds more now
    assert pool.share([b"abc"]) == [block]
    pool.release([block, block])
    pool.release([other])
    assert pool.find(b"ab") == block and pool.take(1) == [other]  # asking makes a block the newest
    assert pool.find(b"ax") is None and pool.take(1) == [block]
    assert pool.find(b"a") is pool.find(b"abc") is None


def test_a_key_stands_for_the_tokens_of_its_blocks_and_some_behind():
    text = list(range(40))
    assert (
        len(chain_keys(text, 16)) == 2 and len(chain_keys(text[:33], 16)) == 2 and len(chain_keys(text[:32], 16)) == 1
    )
    keys = chain_keys(text, 16, ahead=3)
    assert len(keys) == 2 and len(chain_keys(text[:35], 16, ahead=3)) == 1
    for changed, same in ((0, 0), (18, 0), (19, 1), (34, 1), (35, 2)):
        other = [*text[:changed], 99, *text[changed + 1 :]]
        assert [a == b for a, b in zip(keys, chain_keys(other, 16, ahead=3))] == [True] * same + [False] * (2 - same)
