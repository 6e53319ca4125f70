/*
 * Proves: hiroba_alloc and hiroba_alloc_at give every node the same address and zeroed memory, of any size.
 * Regions do not overlap. An impossible allocation returns NULL and sets errno on every node, and does not
 * affect later ones.
 */
#include <errno.h>
#include <stdint.h>

#include "check.h"

static int node, nodes;
static uintptr_t *addresses; /* that each node got */

static void check_same_everywhere(const void *region)
{
    addresses[node] = (uintptr_t)region;
    hiroba_barrier();
    for (int i = 0; i < nodes; i++)
        CHECK(addresses[i] == addresses[0], "node %d got address %#lx, node 0 %#lx", i,
              (unsigned long)addresses[i], (unsigned long)addresses[0]);
    hiroba_barrier();
}

/* Checks that the whole region is zeroed; then every node fills its own block of it. */
static void check_region(unsigned char *region, size_t bytes, unsigned char mark)
{
    size_t first = bytes / (size_t)nodes * (size_t)node;
    size_t end = node == nodes - 1 ? bytes : first + bytes / (size_t)nodes;
    size_t stride = bytes > 1 << 20 ? 32749 : 1; /* a prime: other offsets on every page */
    CHECK(region != NULL, "no region of %lu bytes", (unsigned long)bytes);
    CHECK((uintptr_t)region % 16 == 0, "%p is not aligned for every type", (void *)region);
    check_same_everywhere(region);
    for (size_t i = 0; i < bytes; i += stride)
        CHECK(region[i] == 0, "byte %lu of %lu is %d, not 0", (unsigned long)i,
              (unsigned long)bytes, region[i]);
    CHECK(region[bytes - 1] == 0, "the last of %lu bytes is not 0", (unsigned long)bytes);
    hiroba_barrier();
    for (size_t i = first; i < end; i += stride)
        region[i] = mark;
    if (end == bytes)
        region[bytes - 1] = mark;
    hiroba_barrier();
    CHECK(region[0] == mark && region[bytes - 1] == mark, "the ends of %lu bytes were not seen",
          (unsigned long)bytes);
}

static void check_refused(void *region, const char *call)
{
    CHECK(region == NULL, "%s returned %p", call, region);
    CHECK(errno != 0, "%s failed without errno", call);
    errno = 0;
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {1, 2, 4095, 4096, 4097, 100000, 1 << 20, (64 << 20) + 5};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    unsigned char *regions[SIZES];
    join(&argc, &argv);
    node = hiroba_node();
    nodes = hiroba_nodes();
    addresses = shared((size_t)nodes * sizeof *addresses);

    for (int s = 0; s < SIZES; s++) {
        regions[s] = hiroba_alloc(sizes[s]);
        check_region(regions[s], sizes[s], (unsigned char)(s + 1));
    }
    for (int s = 0; s < SIZES; s++) {
        CHECK(regions[s][0] == s + 1 && regions[s][sizes[s] - 1] == s + 1,
              "the region of %lu bytes was overwritten by another", (unsigned long)sizes[s]);
        for (int t = 0; t < s; t++)
            CHECK(regions[s] >= regions[t] + sizes[t] || regions[t] >= regions[s] + sizes[s],
                  "the regions of %lu and %lu bytes overlap", (unsigned long)sizes[s],
                  (unsigned long)sizes[t]);
    }

    for (int home = 0; home < nodes; home++)
        check_region(hiroba_alloc_at(10000, home), 10000, (unsigned char)(100 + home));

    errno = 0;
    check_refused(hiroba_alloc(SIZE_MAX), "hiroba_alloc(SIZE_MAX)");
    check_refused(hiroba_alloc(SIZE_MAX - 4096), "hiroba_alloc(SIZE_MAX - 4096)");
    check_refused(hiroba_alloc(SIZE_MAX / 2 + 1), "hiroba_alloc(SIZE_MAX / 2 + 1)");
    check_refused(hiroba_alloc_at(SIZE_MAX, 0), "hiroba_alloc_at(SIZE_MAX, 0)");
    check_refused(hiroba_alloc_at(4096, nodes), "hiroba_alloc_at on a node that does not exist");
    check_refused(hiroba_alloc_at(4096, -1), "hiroba_alloc_at on node -1");
    check_region(hiroba_alloc(5000), 5000, 200);
    hiroba_finalize();
    return 0;
}
