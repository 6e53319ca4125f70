/*
 * Proves: regions of different page sizes coexist and behave alike: zeroed, bytes of one page written by all
 * nodes at once, records under locks that cross pages and regions, atomics next to plain data. Untouched
 * memory costs nothing, even 1 TiB. Invalid page sizes are refused.
 */
#include <errno.h>
#include <stdint.h>

#include "check.h"

enum { SIZES = 4, END_BYTES = 16384, STRIDE = 997, ROUNDS = 12, ADDS = 50, RECORDS = 5 };

static const size_t page_sizes[SIZES] = {4096, 8192, 65536, 2 << 20};
static const size_t bytes_of[SIZES] = {96 << 10, 192 << 10, 640 << 10, 5 << 20}; /* plus END_BYTES */
static unsigned char *regions[SIZES];
static int node, nodes;

static unsigned char *region_of(size_t bytes, size_t page_bytes, hiroba_placement placement)
{
    hiroba_options options = {.page_bytes = page_bytes, .placement = placement, .home = nodes - 1};
    unsigned char *region = hiroba_alloc_with(bytes, &options);
    CHECK(region != NULL, "hiroba_alloc_with of %lu bytes in pages of %lu: %s", (unsigned long)bytes,
          (unsigned long)page_bytes, hiroba_error_string());
    CHECK((uintptr_t)region % page_bytes == 0, "%p is not aligned to pages of %lu", (void *)region, (unsigned long)page_bytes);
    return region;
}

static unsigned char value(size_t at, int round, int writer)
{
    return (unsigned char)(at * 13 + (size_t)round * 7 + (size_t)writer);
}

/* Every node writes every nodes-th byte of the part of each region that is accessed. */
static void share_bytes(int round)
{
    for (int r = 0; r < SIZES; r++)
        for (size_t at = (size_t)(round * 31); at + (size_t)nodes <= bytes_of[r]; at += STRIDE)
            regions[r][at + (size_t)node] = value(at, round, node);
    hiroba_barrier();
    for (int r = 0; r < SIZES; r++)
        for (size_t at = (size_t)(round * 31); at + (size_t)nodes <= bytes_of[r]; at += STRIDE)
            for (int writer = 0; writer < nodes; writer++)
                CHECK(regions[r][at + (size_t)writer] == value(at, round, writer),
                      "round %d: byte %lu in pages of %lu is %d, not %d", round, (unsigned long)at, (unsigned long)page_sizes[r],
                      regions[r][at + (size_t)writer], value(at, round, writer));
    hiroba_barrier();
}

static uint32_t *record(int which, int region)
{
    /* At the very end: share_bytes stays below it. */
    return (uint32_t *)(void *)(regions[region] + bytes_of[region]) + which * 300;
}

/* Records have a part in every region, with every node's own words between them. */
static void share_records(uint32_t round)
{
    for (int i = 0; i < 10; i++) {
        int which = (node + i) % RECORDS;
        uint32_t own = round * 1000 + (uint32_t)(node + i);
        for (int r = 0; r < SIZES; r++)
            record(which, r)[10 + node] = own;
        hiroba_lock((unsigned)which);
        uint32_t before = *record(which, 0);
        for (int r = 0; r < SIZES; r++) {
            CHECK(*record(which, r) == before, "record %d is %u, and %u in pages of %lu", which, (unsigned)before,
                  (unsigned)*record(which, r), (unsigned long)page_sizes[r]);
            *record(which, r) = before + 1;
        }
        hiroba_unlock((unsigned)which);
        for (int r = 0; r < SIZES; r++)
            CHECK(record(which, r)[10 + node] == own, "this node's own word in pages of %lu was undone",
                  (unsigned long)page_sizes[r]);
    }
    hiroba_barrier();
    for (int r = 0; r < SIZES; r++) {
        uint32_t sum = 0;
        for (int which = 0; which < RECORDS; which++)
            sum += *record(which, r);
        CHECK(sum == (round + 1) * 10 * (uint32_t)nodes, "the records are %u in all in pages of %lu", (unsigned)sum,
              (unsigned long)page_sizes[r]);
    }
    hiroba_barrier();
}

static void share_words(void)
{
    for (int r = 0; r < SIZES; r++) {
        uint64_t *word = (uint64_t *)(void *)(regions[r] + bytes_of[r] + END_BYTES / 2);
        uint32_t *beside = (uint32_t *)(void *)(word + 1);
        for (uint32_t i = 1; i <= ADDS; i++) {
            beside[node] = i;
            hiroba_fetch_add(word, i);
            CHECK(beside[node] == i, "an atomic undid the word beside it in pages of %lu", (unsigned long)page_sizes[r]);
        }
        hiroba_barrier();
        uint64_t wanted = (uint64_t)nodes * ADDS * (ADDS + 1) / 2;
        CHECK(hiroba_load(word) == wanted && *word == wanted, "the atomic sum in pages of %lu is %lu",
              (unsigned long)page_sizes[r], (unsigned long)hiroba_load(word));
        for (int i = 0; i < nodes; i++)
            CHECK(beside[i] == ADDS, "node %d's word beside the atomic is %u", i, (unsigned)beside[i]);
        hiroba_barrier();
    }
}

static void tebibyte(size_t page_bytes)
{
    size_t bytes = (size_t)1 << 40;
    unsigned char *region = region_of(bytes, page_bytes, HIROBA_PLACEMENT_BLOCK);
    const size_t places[] = {0, (bytes / 2) - 3, bytes - 64};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++)
            region[places[i] + (size_t)(2 + node)] += (unsigned char)(node + i + 1);
        hiroba_barrier();
        for (int i = 0; i < 3; i++)
            for (int writer = 0; writer < nodes; writer++)
                CHECK(region[places[i] + (size_t)(2 + writer)] == (unsigned char)((round + 1) * (writer + i + 1)),
                      "byte %#lx of a TiB is %d", (unsigned long)places[i], region[places[i] + (size_t)(2 + writer)]);
        hiroba_barrier();
    }
    CHECK(region[bytes / 4] == 0, "an untouched byte is %d", region[bytes / 4]);
}

static void refused(void)
{
    static const size_t wrong[] = {1, 512, 2048, 4095, 4097, 5000, 12288, 65537, (2 << 20) + 4096, 4 << 20, (size_t)1 << 40, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        hiroba_options options = {.page_bytes = wrong[i]};
        errno = 0;
        void *region = hiroba_alloc_with(10000, &options);
        CHECK(region == NULL && errno == EINVAL, "pages of %lu bytes: %p, errno %d", (unsigned long)wrong[i], region, errno);
        CHECK(strstr(hiroba_error_string(), "page") != NULL, "the error is: %s", hiroba_error_string());
    }
    hiroba_options options = {.page_bytes = 2 << 20};
    errno = 0;
    CHECK(hiroba_alloc_with(SIZE_MAX - 100, &options) == NULL && errno == ENOMEM, "errno is %d", errno);
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    node = hiroba_node();
    nodes = hiroba_nodes();
    for (int placement = HIROBA_PLACEMENT_BLOCK; placement <= HIROBA_PLACEMENT_HOME; placement++) {
        for (int r = 0; r < SIZES; r++) {
            regions[r] = region_of(bytes_of[r] + END_BYTES, page_sizes[r], (hiroba_placement)placement);
            for (int other = 0; other < r; other++)
                CHECK(regions[r] >= regions[other] + bytes_of[other] + END_BYTES, "regions %d and %d overlap", r, other);
        }
        for (int r = 0; r < SIZES; r++)
            for (size_t at = (size_t)node * 11; at < bytes_of[r] + END_BYTES; at += 3001)
                CHECK(regions[r][at] == 0, "byte %lu is %d, not 0", (unsigned long)at, regions[r][at]);
        hiroba_barrier();
        for (int round = 0; round < ROUNDS / 3; round++) {
            share_bytes(round);
            share_records((uint32_t)round);
        }
        share_words();
        refused();
    }
    tebibyte(4096);
    tebibyte(2 << 20);
    hiroba_finalize();
    return 0;
}
