/*
 * Proves: large regions under automatic update are right, whether their pages are mapped onto their homes'
 * frames or not: stores into other nodes' parts, bytes of one word by several nodes, counters under locks,
 * atomic words, system calls on pages of other nodes, threads, and short regions next to them. Arguments: the
 * regions' protocol ("-" for the job's); "plain" limits the program to stores, loads and barriers in one
 * large region, so that the counts of the run's account are known.
 */
#include "check.h"
#include <string.h>
#include <unistd.h>

enum { PART = 4 << 20, WORDS = PART / 8, ROUNDS = 3, LOCK = 5 };

static uint64_t *blocks, *pages, *far_away, *few;
static const char *protocol;

static uint64_t *under(size_t bytes, hiroba_options options)
{
    options.protocol = protocol;
    uint64_t *region = hiroba_alloc_with(bytes, &options);
    CHECK(region != NULL, "%zu bytes: %s", bytes, hiroba_error_string());
    return region;
}

static uint64_t value(int writer, int round, size_t word)
{
    return (word + 1) * 0x9e3779b97f4a7c15u + (uint64_t)(writer * 1000 + round);
}

/* Every node fills the part of the next one and reads what others have filled. The next round overwrites
 * it. */
static void fill_and_look(int rounds)
{
    int node = hiroba_node(), nodes = hiroba_nodes();
    for (int round = 0; round < rounds; round++) {
        size_t theirs = (size_t)((node + 1) % nodes) * WORDS;
        for (size_t word = 0; word < WORDS; word++)
            blocks[theirs + word] = value(node, round, word);
        hiroba_barrier();
        for (int part = 0; part < nodes; part++)
            for (size_t word = 0; word < WORDS; word++) {
                uint64_t expected = value((part + nodes - 1) % nodes, round, word);
                uint64_t found = blocks[(size_t)part * WORDS + word];
                CHECK(found == expected, "round %d part %d word %zu is %llx, expected %llx", round, part, word,
                      (unsigned long long)found, (unsigned long long)expected);
            }
        hiroba_barrier();
    }
}

/* Neighbouring bytes belong to different nodes; counters belong to all. */
static void count(void *unused)
{
    (void)unused;
    int thread = hiroba_thread(), threads = hiroba_threads();
    unsigned char *bytes = (unsigned char *)far_away;
    for (size_t at = (size_t)thread; at < PART / 2; at += (size_t)threads)
        bytes[at] = (unsigned char)(at % 251 + 1);
    for (int round = 0; round < 50; round++) {
        hiroba_lock(LOCK);
        far_away[WORDS - 1]++;
        few[0]++;
        pages[round]++;
        hiroba_unlock(LOCK);
        hiroba_fetch_add(&far_away[WORDS - 2], 1);
    }
    hiroba_barrier();
    uint64_t each = 50 * (uint64_t)threads;
    CHECK(far_away[WORDS - 1] == each && few[0] == each, "counted %llu and %llu, expected %llu",
          (unsigned long long)far_away[WORDS - 1], (unsigned long long)few[0], (unsigned long long)each);
    CHECK(hiroba_load(&far_away[WORDS - 2]) == each, "an atomic word is %llu, expected %llu",
          (unsigned long long)hiroba_load(&far_away[WORDS - 2]), (unsigned long long)each);
    for (int round = 0; round < 50; round++)
        CHECK(pages[round] == (uint64_t)threads, "page counter %d is %llu", round, (unsigned long long)pages[round]);
    for (size_t at = 0; at < PART / 2; at++)
        CHECK(bytes[at] == (unsigned char)(at % 251 + 1), "byte %zu is %d", at, bytes[at]);
    hiroba_barrier();
}

/* The kernel writes to, and reads from, pages whose home is another node. */
static void call_the_system(void)
{
    int node = hiroba_node(), nodes = hiroba_nodes(), ends[2];
    char *theirs = (char *)blocks + (size_t)((node + 1) % nodes) * PART + 4000;
    char sent[9000], back[9000];
    for (size_t at = 0; at < sizeof sent; at++)
        sent[at] = (char)(at * 7 + (size_t)node);
    CHECK(pipe(ends) == 0, "no pipe");
    CHECK(write(ends[1], sent, sizeof sent) == (ssize_t)sizeof sent, "short write");
    CHECK(read(ends[0], theirs, sizeof sent) == (ssize_t)sizeof sent, "short read into shared memory");
    CHECK(write(ends[1], theirs, sizeof sent) == (ssize_t)sizeof sent, "short write from shared memory");
    CHECK(read(ends[0], back, sizeof back) == (ssize_t)sizeof back, "short read");
    CHECK(memcmp(sent, back, sizeof back) == 0, "the bytes have changed on their way");
    close(ends[0]);
    close(ends[1]);
    hiroba_barrier();
    char *mine = (char *)blocks + (size_t)node * PART + 4000;
    for (size_t at = 0; at < sizeof sent; at++)
        CHECK(mine[at] == (char)(at * 7 + (size_t)((node + nodes - 1) % nodes)), "byte %zu is %d", at, mine[at]);
    hiroba_barrier();
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    CHECK(argc >= 2, "expected a protocol");
    protocol = strcmp(argv[1], "-") == 0 ? NULL : argv[1];
    int nodes = hiroba_nodes();
    blocks = under((size_t)nodes * PART, (hiroba_options){.placement = HIROBA_PLACEMENT_BLOCK});
    if (argc > 2 && strcmp(argv[2], "plain") == 0) {
        fill_and_look(1);
        hiroba_finalize();
        return 0;
    }
    pages = under((size_t)nodes * (2 << 20), (hiroba_options){.placement = HIROBA_PLACEMENT_CYCLIC, .page_bytes = 2 << 20});
    far_away = under(PART, (hiroba_options){.placement = HIROBA_PLACEMENT_HOME, .home = nodes - 1});
    few = under(100000, (hiroba_options){.placement = HIROBA_PLACEMENT_CYCLIC});
    hiroba_prefetch(blocks, (size_t)nodes * PART);
    fill_and_look(ROUNDS);
    call_the_system();
    CHECK(hiroba_run(count, NULL) == 0, "%s", hiroba_error_string());
    hiroba_finalize();
    return 0;
}
