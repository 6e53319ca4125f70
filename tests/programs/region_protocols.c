/*
 * Proves: regions under different protocols work in one job. Each protocol named as an argument has one
 * region of records, which all nodes increment under locks and between barriers, and one page of which all
 * nodes write different bytes at once. Blocks of the heap and a region under the job's own protocol are used
 * in between, and an unknown protocol is refused.
 */
#include "check.h"
#include <errno.h>

enum { RECORDS = 3000, LOCKS = 8, MAX_REGIONS = 16 };

static long *regions[MAX_REGIONS];
static unsigned char *bytes[MAX_REGIONS];

static void *under(const char *protocol, size_t size)
{
    hiroba_options options = {.protocol = protocol, .placement = HIROBA_PLACEMENT_CYCLIC};
    void *region = hiroba_alloc_with(size, &options);
    CHECK(region != NULL, "a region under %s: %s", protocol, hiroba_error_string());
    return region;
}

/* Every node adds to every record of every region; neighbouring records are on the same pages. */
static void count_up(int count, int round)
{
    int node = hiroba_node(), nodes = hiroba_nodes();
    for (int lock = 0; lock < LOCKS; lock++) {
        hiroba_lock((unsigned)lock);
        for (int region = 0; region < count; region++)
            for (int record = lock; record < RECORDS; record += LOCKS)
                regions[region][record] += node + 1;
        hiroba_unlock((unsigned)lock);
    }
    for (int region = 0; region < count; region++)
        for (int at = node; at < RECORDS; at += nodes)
            bytes[region][at] = (unsigned char)(at + round);
}

static void look(int count, int round)
{
    long nodes = hiroba_nodes(), each = nodes * (nodes + 1) / 2;
    for (int region = 0; region < count; region++)
        for (int at = 0; at < RECORDS; at++) {
            CHECK(regions[region][at] == each * (round + 1), "region %d record %d is %ld in round %d", region, at,
                  regions[region][at], round);
            CHECK(bytes[region][at] == (unsigned char)(at + round), "region %d byte %d is %d in round %d", region, at,
                  bytes[region][at], round);
        }
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    int count = argc - 1;
    CHECK(count >= 1 && count < MAX_REGIONS, "expected the protocols as arguments");
    hiroba_options unknown = {.protocol = "msi"};
    CHECK(hiroba_alloc_with(1, &unknown) == NULL && errno == ENOTSUP, "errno is %d", errno);
    for (int region = 0; region < count; region++) {
        regions[region] = under(argv[region + 1], RECORDS * sizeof(long));
        bytes[region] = under(argv[region + 1], RECORDS);
    }
    uint64_t *words = under(argv[count], 64), *own = shared(64);
    for (int round = 0; round < 12; round++) {
        count_up(count, round);
        hiroba_fetch_add(&words[0], 1);
        hiroba_fetch_add(&own[1], 2);
        hiroba_barrier();
        look(count, round);
        hiroba_barrier();
    }
    uint64_t expected = 12 * (uint64_t)hiroba_nodes();
    CHECK(hiroba_load(&words[0]) == expected && own[1] == 2 * expected, "expected %lu, got %lu and %lu",
          (unsigned long)expected, (unsigned long)hiroba_load(&words[0]), (unsigned long)own[1]);
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
