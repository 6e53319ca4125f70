/*
 * Proves: the calls that only advise or place have the same effect on contents as the plain ones.
 * hiroba_alloc_with without options is hiroba_alloc. Hints change no contents, and are refused outside of
 * shared memory. hiroba_alloc_local returns zeroed memory of this node.
 */
#include <errno.h>
#include <stdint.h>

#include "check.h"

int main(int argc, char **argv)
{
    enum { WORDS = 20000 };
    join(&argc, &argv);
    uint32_t node = (uint32_t)hiroba_node(), nodes = (uint32_t)hiroba_nodes();

    uint32_t *region = hiroba_alloc_with(WORDS * sizeof *region, NULL);
    CHECK(region != NULL, "hiroba_alloc_with without options failed");
    for (uint32_t round = 1; round <= 10; round++) {
        for (uint32_t i = node; i < WORDS; i += nodes)
            region[i] = i * round;
        hiroba_barrier();
        int result = hiroba_prefetch(region + 1000, (WORDS - 1000) * sizeof *region);
        CHECK(result == 0, "hiroba_prefetch returned %d", result);
        hiroba_range ranges[] = {{region + 7, 40000}, {region + 15000, 0}, {region + 19000, 4000}};
        result = hiroba_prefetch_ranges(ranges, 3);
        CHECK(result == 0, "hiroba_prefetch_ranges returned %d", result);
        for (uint32_t i = 0; i < WORDS; i++)
            CHECK(region[i] == i * round, "round %u: word %u is %u", (unsigned)round, (unsigned)i,
                  (unsigned)region[i]);
        hiroba_barrier();
    }

    int here = 0;
    hiroba_range ranges[] = {{region, 4096}, {&here, sizeof here}};
    CHECK(hiroba_prefetch(&here, sizeof here) == -EFAULT, "a hint of private memory is taken");
    CHECK(hiroba_prefetch(region, SIZE_MAX) == -EFAULT, "a hint of all memory is taken");
    CHECK(hiroba_prefetch_ranges(ranges, 2) == -EFAULT, "a range of private memory is taken");
    CHECK(hiroba_prefetch_ranges(NULL, 1) == -EFAULT, "ranges at NULL are taken");
    CHECK(hiroba_prefetch_ranges(NULL, 0) == 0, "no ranges are refused");

    /* Each node allocates a different size: the call is not collective. */
    size_t words = 1000 * (node + 1);
    uint32_t *own = hiroba_alloc_local(words * sizeof *own);
    CHECK(own != NULL, "hiroba_alloc_local failed");
    for (size_t i = 0; i < words; i++) {
        CHECK(own[i] == 0, "word %lu of local memory is not 0", (unsigned long)i);
        own[i] = (uint32_t)i + node;
    }
    hiroba_barrier();
    for (size_t i = 0; i < words; i++)
        CHECK(own[i] == (uint32_t)i + node, "word %lu of local memory was changed by another node",
              (unsigned long)i);
    hiroba_finalize();
    return 0;
}
