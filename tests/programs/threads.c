/*
 * Proves: several threads of a node share memory as nodes do. Inside hiroba_run threads are numbered,
 * barriers wait for all of them, and locks belong to threads. Siblings write other bytes of a page while one
 * of them acquires, fault on different pages and on the same one at once, pass blocks and turns around, and
 * allocate together. Threads that a node starts itself use locks, conditions, atomics and plain data while
 * its main thread waits in barriers.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>

#include "check.h"

enum { PAGE = 4096, THREADS_MAX = 64, RUNS = 4, ROUNDS = 25 };
enum { PAGES = 4, LOCKS = 3, PASSES = 60, COPIES = 3, TURNS = 8, BLOCKS = 20, ADDS = 100, FAULT_PAGES = 24 };
enum { OWNED = 50, RING = 51, TOKEN = 53, RECORD = 54 };

struct slot {
    unsigned char *block;
    size_t bytes;
};

struct board {
    uint32_t calls[THREADS_MAX];
    uint32_t turn, taken;
    int32_t node[THREADS_MAX];
    uintptr_t address[THREADS_MAX];
    uint64_t tickets, added;
    struct slot slots[THREADS_MAX][BLOCKS];
    uint32_t given[THREADS_MAX * ADDS];
};

static struct board *board;
static unsigned char *mixed;  /* PAGES pages: bytes of all threads, interleaved, and counters under locks */
static unsigned char *faulted; /* FAULT_PAGES for each node */
static uint32_t from_main[THREADS_MAX]; /* private: what this node's main thread wrote before the run */
static uint32_t *said;                  /* shared: the same */
static int per_node;

/* The place of thread `thread`'s byte number `place` in the mixed pages. The front of each page is for
 * counters. */
static volatile unsigned char *byte_of(int place, int thread, int threads)
{
    size_t at = 64 + (size_t)place * (size_t)threads + (size_t)thread;
    return mixed + (at / (PAGE - 64)) * PAGE + 64 + at % (PAGE - 64);
}

static uint32_t *counter(int lock, int copy)
{
    return (uint32_t *)(void *)(mixed + (size_t)copy * PAGE) + lock;
}

static void numbers(int me, int threads)
{
    CHECK(me >= 0 && me < threads && threads <= THREADS_MAX, "thread %d of %d", me, threads);
    CHECK(threads == per_node * hiroba_nodes(), "%d threads on %d nodes of %d", threads, hiroba_nodes(), per_node);
    CHECK(me / per_node == hiroba_node(), "thread %d runs on node %d", me, hiroba_node());
    board->calls[me]++;
    board->node[me] = hiroba_node();
    for (int i = 0; i < hiroba_nodes(); i++)
        CHECK(said[i] == from_main[i], "node %d said %u before the run, here it is %u", i, (unsigned)from_main[i],
              (unsigned)said[i]);
    hiroba_barrier();
    for (int i = 0; i < threads; i++)
        CHECK(board->calls[i] == board->calls[me] && board->node[i] == i / per_node, "thread %d was called %u times", i,
              (unsigned)board->calls[i]);
}

static void barriers(int me, int threads)
{
    for (int round = 1; round <= ROUNDS; round++) {
        for (int place = 0; place < 40; place++)
            *byte_of(place, me, threads) = (unsigned char)(round + place + me);
        hiroba_barrier();
        for (int place = 0; place < 40; place++)
            for (int i = 0; i < threads; i++)
                CHECK(*byte_of(place, i, threads) == (unsigned char)(round + place + i), "round %d: byte %d of thread %d is %d",
                      round, place, i, *byte_of(place, i, threads));
        hiroba_barrier();
    }
}

/* Every acquire may fetch the page that siblings write at that moment. */
static void merges(int me, int threads, uint32_t run)
{
    for (int i = 0; i < PASSES; i++) {
        unsigned lock = (unsigned)((me + i) % LOCKS);
        volatile unsigned char *mine = byte_of(i % 40, me, threads);
        *mine = (unsigned char)(i * 3 + me);
        hiroba_lock(lock);
        uint32_t before = *counter((int)lock, 0);
        for (int copy = 0; copy < COPIES; copy++) {
            CHECK(*counter((int)lock, copy) == before, "copies 0 and %d of counter %u are %u and %u", copy, lock,
                  (unsigned)before, (unsigned)*counter((int)lock, copy));
            *counter((int)lock, copy) = before + 1;
        }
        CHECK(*mine == (unsigned char)(i * 3 + me), "pass %d: an acquire undid this thread's own store", i);
        hiroba_unlock(lock);
        CHECK(*mine == (unsigned char)(i * 3 + me), "pass %d: a release undid this thread's own store", i);
    }
    hiroba_barrier();
    uint32_t sum = 0;
    for (int lock = 0; lock < LOCKS; lock++)
        sum += *counter(lock, COPIES - 1);
    CHECK(sum == run * (uint32_t)(threads * PASSES), "the counters are %u in all, not %u", (unsigned)sum,
          (unsigned)run * (unsigned)(threads * PASSES));
    for (int thread = 0; thread < threads; thread++)
        for (int i = PASSES - 40; i < PASSES; i++)
            CHECK(*byte_of(i % 40, thread, threads) == (unsigned char)(i * 3 + thread), "byte %d of thread %d is %d", i % 40,
                  thread, *byte_of(i % 40, thread, threads));
    hiroba_barrier();
}

static void ownership(int me, int threads)
{
    for (int owner = 0; owner < threads; owner += threads > 4 ? threads / 4 : 1) {
        if (me == owner)
            hiroba_lock(OWNED);
        hiroba_barrier();
        if (me != owner)
            CHECK(hiroba_trylock(OWNED) == EBUSY, "thread %d took a lock that thread %d has", me, owner);
        hiroba_barrier();
        if (me == owner)
            hiroba_unlock(OWNED);
        hiroba_barrier();
    }
    while (hiroba_trylock(OWNED) == EBUSY)
        ;
    board->taken++;
    hiroba_unlock(OWNED);
    hiroba_barrier();
    CHECK(board->taken % (uint32_t)threads == 0, "the lock was taken %u times", (unsigned)board->taken);
    hiroba_barrier();
}

/* Every thread takes its turn, woken by a broadcast; siblings wait for the same condition. */
static void turns(int me, int threads, uint32_t run)
{
    uint32_t first = (run - 1) * TURNS * (uint32_t)threads;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        hiroba_lock(RING);
        while (board->turn != first + turn * (uint32_t)threads + (uint32_t)me)
            hiroba_cond_wait(RING, RING);
        board->turn++;
        hiroba_cond_broadcast(RING);
        hiroba_unlock(RING);
    }
    hiroba_barrier();
    CHECK(board->turn == first + TURNS * (uint32_t)threads, "%u turns were taken", (unsigned)board->turn);
}

static void atomics(int me, int threads, uint32_t run)
{
    for (int i = 0; i < ADDS; i++) {
        uint64_t ticket = hiroba_fetch_add(&board->tickets, 1) - (run - 1) * (uint64_t)(threads * ADDS);
        CHECK(ticket < (uint64_t)(threads * ADDS), "ticket %lu was given to thread %d", (unsigned long)ticket, me);
        board->given[ticket]++;
        uint64_t before = hiroba_load(&board->added);
        while (!hiroba_compare_exchange(&board->added, &before, before + 1))
            ;
    }
    hiroba_barrier();
    for (int i = 0; i < threads * ADDS; i++)
        CHECK(board->given[i] == run, "ticket %d was given %u times", i, (unsigned)board->given[i]);
    CHECK(hiroba_load(&board->added) == run * (uint64_t)(threads * ADDS), "compare_exchange lost an addition");
    hiroba_barrier();
}

static size_t size_of(int owner, int index, uint32_t run)
{
    return (size_t)(1 + (owner * 31 + index * 257 + (int)run * 7) % (index % 7 == 0 ? 9000 : 300));
}

static void blocks(int me, int threads, uint32_t run)
{
    for (int turn = 1; turn <= 3; turn++) {
        for (int index = 0; index < BLOCKS; index++) {
            size_t bytes = size_of(me, index, run);
            unsigned char *block = hiroba_malloc(bytes);
            CHECK(block != NULL, "no block of %lu bytes", (unsigned long)bytes);
            memset(block, me + index, bytes);
            board->slots[me][index] = (struct slot){block, bytes};
        }
        hiroba_barrier();
        int other = (me + turn) % threads;
        for (int index = 0; index < BLOCKS; index++) {
            struct slot slot = board->slots[other][index];
            for (size_t i = 0; i < slot.bytes; i++)
                CHECK(slot.block[i] == (unsigned char)(other + index), "byte %lu of block %d of thread %d is %d",
                      (unsigned long)i, index, other, slot.block[i]);
            if (index % 3 == 0) {
                slot.block = hiroba_realloc(slot.block, slot.bytes + 500);
                CHECK(slot.block != NULL, "no room for a longer block");
                CHECK(slot.block[slot.bytes - 1] == (unsigned char)(other + index), "hiroba_realloc lost the end");
                memset(slot.block, 0xee, slot.bytes + 500);
            }
            hiroba_free(slot.block);
        }
        hiroba_barrier();
    }
}

/* The next node's threads have written this node's pages: siblings fault on different ones, and all on the
 * same one. */
static void faults(int me, int threads, uint32_t run)
{
    int node = hiroba_node(), next = (node + 1) % hiroba_nodes(), number = me % per_node;
    for (unsigned round = 0; round < 4; round++) {
        for (int page = number; page < FAULT_PAGES; page += per_node)
            for (int i = 0; i < 64; i++)
                faulted[(size_t)(next * FAULT_PAGES + page) * PAGE + (size_t)i * 61] = (unsigned char)(run + round + (unsigned)page);
        hiroba_barrier();
        unsigned char *mine = faulted + (size_t)(node * FAULT_PAGES) * PAGE;
        CHECK(mine[0] == (unsigned char)(run + round), "the page on which all fault at once holds %d", mine[0]);
        for (int page = number; page < FAULT_PAGES; page += per_node) {
            unsigned char *bytes = mine + (size_t)page * PAGE;
            for (int i = 0; i < 64; i++)
                CHECK(bytes[i * 61] == (unsigned char)(run + round + (unsigned)page), "page %d holds %d", page, bytes[i * 61]);
            bytes[PAGE - 1] = (unsigned char)(round + 1);
        }
        mine[(size_t)(FAULT_PAGES - 1) * PAGE + 10 + (size_t)number]++; /* not a multiple of 61 */
        hiroba_barrier();
        for (int page = 0; page < FAULT_PAGES; page++)
            CHECK(mine[(size_t)page * PAGE + PAGE - 1] == round + 1, "a sibling's store to page %d is lost", page);
        for (int sibling = 0; sibling < per_node; sibling++)
            CHECK(mine[(size_t)(FAULT_PAGES - 1) * PAGE + 10 + (size_t)sibling] == (run - 1) * 4 + round + 1,
                  "sibling %d's store to a page of all is lost", sibling);
        hiroba_barrier();
    }
    (void)threads;
}

static void allocations(int me, int threads)
{
    static const size_t page_sizes[] = {0, 65536, 8192};
    for (int i = 0; i < 3; i++) {
        hiroba_options options = {.page_bytes = page_sizes[i]};
        unsigned char *region = hiroba_alloc_with((size_t)threads * 700, &options);
        CHECK(region != NULL, "hiroba_alloc_with: %s", hiroba_error_string());
        board->address[me] = (uintptr_t)region;
        for (int at = 0; at < 700; at++) {
            CHECK(region[at * threads + me] == 0, "new memory holds %d", region[at * threads + me]);
            region[at * threads + me] = (unsigned char)(at + me);
        }
        hiroba_barrier();
        for (int thread = 0; thread < threads; thread++)
            CHECK(board->address[thread] == (uintptr_t)region, "thread %d got %#lx, thread %d %#lx", thread,
                  (unsigned long)board->address[thread], me, (unsigned long)region);
        for (int at = 0; at < 700 * threads; at++)
            CHECK(region[at] == (unsigned char)(at / threads + at % threads), "byte %d is %d", at, region[at]);
        hiroba_barrier();
    }
    errno = 0;
    CHECK(hiroba_alloc(0) == NULL && errno == EINVAL, "0 bytes were allocated");
}

static void work(void *argument)
{
    uint32_t run = *(uint32_t *)argument;
    int me = hiroba_thread(), threads = hiroba_threads();
    CHECK(hiroba_run(work, argument) == -EPERM, "hiroba_run inside itself was accepted");
    numbers(me, threads);
    barriers(me, threads);
    merges(me, threads, run);
    ownership(me, threads);
    turns(me, threads, run);
    atomics(me, threads, run);
    blocks(me, threads, run);
    faults(me, threads, run);
    allocations(me, threads);
}

static void in_runs(void)
{
    uint32_t *run = shared(sizeof *run);
    for (uint32_t number = 1; number <= RUNS; number++) {
        /* A run starts with all that main threads wrote before it, and main threads see after it what
         * threads wrote. */
        for (int i = 0; i < hiroba_nodes(); i++)
            from_main[i] = number * 100 + (uint32_t)i;
        said[hiroba_node()] = number * 100 + (uint32_t)hiroba_node();
        if (hiroba_node() == hiroba_nodes() - 1)
            *run = number;
        CHECK(hiroba_run(NULL, run) == -EINVAL, "hiroba_run of nothing was accepted");
        int result = hiroba_run(work, run);
        CHECK(result == 0, "hiroba_run returned %d: %s", result, hiroba_error_string());
        CHECK(hiroba_thread() == hiroba_node() && hiroba_threads() == hiroba_nodes(), "outside hiroba_run this is thread %d",
              hiroba_thread());
        for (int thread = 0; thread < per_node * hiroba_nodes(); thread++)
            CHECK(board->calls[thread] == number, "thread %d was called %u times", thread, (unsigned)board->calls[thread]);
        hiroba_barrier();
    }
}

/* --- Threads of the program's own ------------------------------------------------------------------- */

enum { OWN_THREADS = 2, OWN_PASSES = 80, RECORD_PAGES = 3, TOKENS = 12 };

struct own {
    unsigned char bytes[RECORD_PAGES][PAGE]; /* main threads' bytes in front, own threads' behind */
    uint64_t added;
    uint32_t token;
};

static struct own *own;

static uint32_t *record(int page, int which)
{
    return (uint32_t *)(void *)(own->bytes[page] + 2048) + which;
}

/* The work of thread `number` of all nodes' own threads: everything except collectives. */
static void *by_itself(void *argument)
{
    int number = (int)(intptr_t)argument, all = OWN_THREADS * hiroba_nodes();
    for (uint32_t pass = 1; pass <= OWN_PASSES; pass++) {
        for (int page = 0; page < RECORD_PAGES; page++)
            own->bytes[page][1024 + number] = (unsigned char)pass;
        unsigned which = (pass + (uint32_t)number) % 2;
        hiroba_lock(RECORD + which);
        uint32_t before = *record(0, (int)which);
        for (int page = 0; page < RECORD_PAGES; page++) {
            CHECK(*record(page, (int)which) == before, "parts 0 and %d of record %u are %u and %u", page, which,
                  (unsigned)before, (unsigned)*record(page, (int)which));
            *record(page, (int)which) = before + 1;
        }
        hiroba_unlock(RECORD + which);
        for (int page = 0; page < RECORD_PAGES; page++)
            CHECK(own->bytes[page][1024 + number] == (unsigned char)pass, "this thread's own store was undone");
        hiroba_fetch_add(&own->added, pass);
    }
    for (uint32_t round = 0; round < TOKENS; round++) {
        hiroba_lock(TOKEN);
        while (own->token != round * (uint32_t)all + (uint32_t)number)
            hiroba_cond_wait(TOKEN, TOKEN);
        own->token++;
        hiroba_cond_broadcast(TOKEN);
        hiroba_unlock(TOKEN);
    }
    unsigned char *block = hiroba_malloc(100);
    CHECK(block != NULL, "no block");
    memset(block, number, 100);
    return block;
}

static void beside_own_threads(void)
{
    int node = hiroba_node(), nodes = hiroba_nodes(), all = OWN_THREADS * nodes;
    for (uint32_t time = 1; time <= 3; time++) {
        own = shared(sizeof *own);
        pthread_t threads[OWN_THREADS];
        for (int i = 0; i < OWN_THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, by_itself, (void *)(intptr_t)(node * OWN_THREADS + i)) == 0, "no thread");
        for (int round = 1; round <= ROUNDS; round++) {
            for (int page = 0; page < RECORD_PAGES; page++)
                own->bytes[page][node] = (unsigned char)(round + page);
            hiroba_barrier();
            for (int page = 0; page < RECORD_PAGES; page++)
                for (int i = 0; i < nodes; i++)
                    CHECK(own->bytes[page][i] == round + page, "round %d: node %d's byte of page %d is %d", round, i, page,
                          own->bytes[page][i]);
            hiroba_barrier();
        }
        for (int i = 0; i < OWN_THREADS; i++) {
            void *block;
            CHECK(pthread_join(threads[i], &block) == 0, "no end of a thread");
            CHECK(((unsigned char *)block)[99] == node * OWN_THREADS + i, "a block of a thread that ended holds %d",
                  ((unsigned char *)block)[99]);
            hiroba_free(block);
        }
        hiroba_barrier();
        CHECK(own->token == (uint32_t)(TOKENS * all), "the token was passed %u times", (unsigned)own->token);
        CHECK(own->added == (uint64_t)all * OWN_PASSES * (OWN_PASSES + 1) / 2, "the sum is %lu", (unsigned long)own->added);
        for (int page = 0; page < RECORD_PAGES; page++) {
            CHECK(*record(page, 0) + *record(page, 1) == (uint32_t)(all * OWN_PASSES), "part %d of the records: %u and %u", page,
                  (unsigned)*record(page, 0), (unsigned)*record(page, 1));
            for (int i = 0; i < all; i++)
                CHECK(own->bytes[page][1024 + i] == OWN_PASSES, "thread %d's byte of page %d is %d", i, page,
                      own->bytes[page][1024 + i]);
        }
        hiroba_barrier();
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "expected the threads of a node as argument");
    per_node = atoi(argv[1]);
    join(&argc, &argv);
    board = shared(sizeof *board);
    mixed = shared((size_t)PAGES * PAGE);
    faulted = shared((size_t)FAULT_PAGES * PAGE * (size_t)hiroba_nodes());
    said = shared((size_t)hiroba_nodes() * sizeof *said);
    CHECK(40 * per_node * hiroba_nodes() <= (PAGES - 1) * (PAGE - 64), "too many threads for this program");
    in_runs();
    beside_own_threads();
    hiroba_finalize();
    return 0;
}
