/*
 * Proves: everything at once, for the given time. Phases drawn from a seed, each run by the main threads or
 * by hiroba_run: disjoint writes and barriers, records under locks, a queue with conditions, atomics next to
 * plain data, blocks that move, system calls on absent memory, new regions, threads of the program's own
 * beside barriers. Every value is known and checked; the purposes share pages of four sizes.
 *
 *     soak SECONDS [SEED]
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { THREADS_MAX = 256, REGIONS = 4, REGION_BYTES = 1 << 20, HOT_BYTES = 96 << 10 };
enum { CELLS = 4000, RECORDS = 6, COPIES = 4, ATOMICS = 5, SLOTS = 40, BUFFER = 3 * 4096 + 900, CAPACITY = 6 };
enum { ITEMS = 20, REGIONS_MADE_MAX = 200, OWN_THREADS = 2 };
enum { RECORD_LOCK = 100, SLOT_LOCK = 200, SLOT_LOCKS = 7, QUEUE_LOCK = 300, NOT_FULL = 1, NOT_EMPTY = 2 };
enum kind { CELL_PHASE, RECORD_PHASE, QUEUE_PHASE, ATOMIC_PHASE, BLOCK_PHASE, SYSTEM_PHASE, REGION_PHASE, OWN_PHASE, KINDS };

static const char *const names[KINDS] = {"cells", "records", "queue", "atomics", "blocks", "system calls", "regions", "own threads"};

struct slot {
    unsigned char *block;
    uint64_t bytes, tag;
};

struct queue {
    uint64_t items[CAPACITY], sum;
    uint32_t filled, head, taken, put;
};

static uint64_t seed;
static uint32_t phase;
static enum kind kind;
static int per_node, nodes;
static uint32_t regions_made;

static unsigned char *regions[REGIONS];
static uint32_t *cells[CELLS];
static uint32_t cell_phase[CELLS]; /* private: the phase of the last write of each */
static uint32_t *records[RECORDS][COPIES];
static uint32_t record_expected[RECORDS];
static uint64_t *atomics[ATOMICS];
static uint64_t atomic_expected[ATOMICS];
static unsigned char *own_bytes[THREADS_MAX]; /* 4 bytes for each thread */
static uint32_t *go;
static struct slot *slots;
static struct queue *queue;
static unsigned char *buffers; /* BUFFER for each thread */

#define VERIFY(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "soak: seed %lu, phase %u (%s), thread %d of %d: ", (unsigned long)seed, (unsigned)phase,   \
                    names[kind], hiroba_thread(), hiroba_threads());                                                   \
            check_failed(__FILE__, __LINE__, __VA_ARGS__);                                                             \
        }                                                                                                              \
    } while (0)

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t z = seed + a * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xd1342543de82ef95) + c * UINT64_C(0x2545f4914f6cdd1d);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

struct generator {
    uint64_t stream, count;
};

static uint32_t draw(struct generator *generator, uint32_t below)
{
    return (uint32_t)(mix(generator->stream, generator->count++, 77) >> 20) % below;
}

/* The generator of a thread in this phase; any thread can draw the same numbers. */
static struct generator of_thread(int thread)
{
    return (struct generator){mix(phase, (uint64_t)thread, 5), 0};
}

/* --- Layout ------------------------------------------------------------------------------------------- */

/* Returns an unused place of 8 bytes, mostly next to many others. */
static unsigned char *deal(struct generator *generator)
{
    static unsigned char used[REGIONS][REGION_BYTES / 8];
    for (;;) {
        uint32_t region = draw(generator, REGIONS);
        uint32_t place = draw(generator, (draw(generator, 4) ? HOT_BYTES : REGION_BYTES) / 8);
        if (!used[region][place]) {
            used[region][place] = 1;
            return regions[region] + (size_t)place * 8;
        }
    }
}

static void deal_all(void)
{
    static const size_t page_sizes[REGIONS] = {0, 4096, 65536, 2 << 20};
    for (int r = 0; r < REGIONS; r++) {
        hiroba_options options = {.page_bytes = page_sizes[r], .placement = (hiroba_placement)(r % 3), .home = nodes - 1};
        regions[r] = hiroba_alloc_with(REGION_BYTES, &options);
        CHECK(regions[r] != NULL, "%s", hiroba_error_string());
    }
    struct generator generator = {1, 0};
    for (int i = 0; i < CELLS; i++)
        cells[i] = (uint32_t *)(void *)(deal(&generator) + 4 * draw(&generator, 2));
    for (int i = 0; i < RECORDS; i++)
        for (int copy = 0; copy < COPIES; copy++)
            records[i][copy] = (uint32_t *)(void *)deal(&generator);
    for (int i = 0; i < ATOMICS; i++)
        atomics[i] = (uint64_t *)(void *)deal(&generator);
    for (int i = 0; i < THREADS_MAX; i++)
        own_bytes[i] = deal(&generator) + draw(&generator, 4);
    go = shared(2 * sizeof *go);
    slots = shared(SLOTS * sizeof *slots);
    queue = shared(sizeof *queue);
    buffers = shared((size_t)BUFFER * (size_t)(nodes * per_node));
}

/* Writes a word of the thread's own, on pages that others use: its contents must stay. */
static void set_own(int thread, uint32_t i)
{
    for (int byte = 0; byte < 4; byte++)
        own_bytes[thread][byte] = (unsigned char)(i + phase + (uint32_t)(thread * byte));
}

static void check_own(int thread, uint32_t i)
{
    for (int byte = 0; byte < 4; byte++)
        VERIFY(own_bytes[thread][byte] == (unsigned char)(i + phase + (uint32_t)(thread * byte)),
               "this thread's own byte %d was undone after step %u", byte, (unsigned)i);
}

/* --- Phases ------------------------------------------------------------------------------------------- */

static uint32_t cell_value(uint32_t when, uint32_t cell)
{
    return when == 0 ? 0 : (uint32_t)mix(when, cell, 9);
}

/* Returns the owner of the cell in a phase. The cell has none if that is not a thread's number. */
static uint32_t cell_owner(uint32_t when, uint32_t cell, int threads)
{
    uint32_t spread = 1 + (uint32_t)(mix(when, 3, 3) % (uint64_t)(2 * threads));
    return (uint32_t)(mix(when, cell, 4) % spread);
}

static void cell_steps(int me, int threads)
{
    for (uint32_t cell = 0; cell < CELLS; cell++)
        if (cell_owner(phase, cell, threads) == (uint32_t)me) {
            VERIFY(*cells[cell] == cell_value(cell_phase[cell], cell), "cell %u was %#x before it was written, not %#x",
                   (unsigned)cell, (unsigned)*cells[cell], (unsigned)cell_value(cell_phase[cell], cell));
            *cells[cell] = cell_value(phase, cell);
        }
    hiroba_barrier();
    for (uint32_t cell = (uint32_t)me % 3; cell < CELLS; cell += 3) {
        uint32_t when = cell_owner(phase, cell, threads) < (uint32_t)threads ? phase : cell_phase[cell];
        VERIFY(*cells[cell] == cell_value(when, cell), "cell %u is %#x, not %#x", (unsigned)cell, (unsigned)*cells[cell],
               (unsigned)cell_value(when, cell));
    }
}

static void cells_done(int threads)
{
    for (uint32_t cell = 0; cell < CELLS; cell++)
        if (cell_owner(phase, cell, threads) < (uint32_t)threads)
            cell_phase[cell] = phase;
}

/* One pass under a lock: the record, and the amount to add. */
static void record_pass(struct generator *generator, uint32_t *which, uint32_t *amount)
{
    *which = draw(generator, RECORDS);
    *amount = 1 + draw(generator, 1000);
}

enum { RECORD_PASSES = 25 };

static void record_steps(int me)
{
    struct generator generator = of_thread(me);
    for (uint32_t pass = 0; pass < RECORD_PASSES; pass++) {
        uint32_t which, amount;
        record_pass(&generator, &which, &amount);
        set_own(me, pass);
        if (pass % 3 != 0 || hiroba_trylock(RECORD_LOCK + which) != 0)
            hiroba_lock(RECORD_LOCK + which);
        check_own(me, pass);
        uint32_t before = *records[which][0];
        for (int copy = 0; copy < COPIES; copy++)
            VERIFY(*records[which][copy] == before, "copies 0 and %d of record %u are %u and %u", copy, (unsigned)which,
                   (unsigned)before, (unsigned)*records[which][copy]);
        for (int copy = 0; copy < COPIES; copy++)
            *records[which][copy] = before + amount;
        hiroba_unlock(RECORD_LOCK + which);
        check_own(me, pass);
    }
}

static void records_done(int first, int end)
{
    for (int thread = first; thread < end; thread++) {
        struct generator generator = of_thread(thread);
        for (int pass = 0; pass < RECORD_PASSES; pass++) {
            uint32_t which, amount;
            record_pass(&generator, &which, &amount);
            record_expected[which] += amount;
        }
    }
}

static void check_records(void)
{
    for (int which = 0; which < RECORDS; which++)
        for (int copy = 0; copy < COPIES; copy++)
            VERIFY(*records[which][copy] == record_expected[which], "copy %d of record %d is %u, not %u", copy, which,
                   (unsigned)*records[which][copy], (unsigned)record_expected[which]);
}

static void wake(unsigned condition)
{
    if (phase % 2)
        hiroba_cond_broadcast(condition);
    else
        hiroba_cond_signal(condition);
}

static void put(uint64_t item)
{
    hiroba_lock(QUEUE_LOCK);
    while (queue->filled == CAPACITY)
        hiroba_cond_wait(NOT_FULL, QUEUE_LOCK);
    queue->items[(queue->head + queue->filled) % CAPACITY] = item;
    queue->filled++;
    queue->put++;
    wake(NOT_EMPTY);
    hiroba_unlock(QUEUE_LOCK);
}

/* Takes an item. Returns false when all items have been taken. */
static int take(uint32_t total)
{
    hiroba_lock(QUEUE_LOCK);
    while (queue->filled == 0 && queue->taken < total)
        hiroba_cond_wait(NOT_EMPTY, QUEUE_LOCK);
    int found = queue->filled > 0;
    if (found) {
        queue->sum += queue->items[queue->head];
        queue->head = (queue->head + 1) % CAPACITY;
        queue->filled--;
        queue->taken++;
        wake(NOT_FULL);
        if (queue->taken == total)
            hiroba_cond_broadcast(NOT_EMPTY);
    }
    hiroba_unlock(QUEUE_LOCK);
    return found;
}

static void queue_steps(int me, int threads)
{
    int producers = threads > 1 ? threads / 2 : 1;
    uint32_t total = (uint32_t)(producers * ITEMS);
    if (me == 0)
        *queue = (struct queue){.head = phase % CAPACITY};
    hiroba_barrier();
    if (threads == 1) {
        for (uint32_t item = 0; item < ITEMS; item++) {
            put(mix(phase, 0, item));
            VERIFY(take(total), "the item just put is not there");
        }
    } else if (me % 2 == 1) { /* the producers are threads 1, 3, ... */
        for (uint32_t item = 0; item < ITEMS; item++)
            put(mix(phase, (uint64_t)(me / 2), item));
    } else {
        while (take(total))
            ;
    }
    hiroba_barrier();
    uint64_t sum = 0;
    for (int producer = 0; producer < producers; producer++)
        for (uint32_t item = 0; item < ITEMS; item++)
            sum += mix(phase, (uint64_t)producer, item);
    VERIFY(queue->put == total && queue->taken == total && queue->filled == 0 && queue->sum == sum,
           "of %u items %u were put and %u taken, %u are left; the sum is %#lx, not %#lx", (unsigned)total, (unsigned)queue->put,
           (unsigned)queue->taken, (unsigned)queue->filled, (unsigned long)queue->sum, (unsigned long)sum);
}

enum { ATOMIC_PASSES = 20 };

static void atomic_steps(int me)
{
    struct generator generator = of_thread(me);
    for (uint32_t pass = 0; pass < ATOMIC_PASSES; pass++) {
        uint64_t *word = atomics[draw(&generator, ATOMICS)];
        uint64_t amount = draw(&generator, 100);
        set_own(me, pass);
        if (pass % 4 == 0) {
            uint64_t before = hiroba_load(word);
            while (!hiroba_compare_exchange(word, &before, before + amount))
                ;
        } else {
            hiroba_fetch_add(word, amount);
        }
        check_own(me, pass);
    }
}

static void atomics_done(int threads)
{
    for (int thread = 0; thread < threads; thread++) {
        struct generator generator = of_thread(thread);
        for (int pass = 0; pass < ATOMIC_PASSES; pass++) {
            uint32_t which = draw(&generator, ATOMICS);
            atomic_expected[which] += draw(&generator, 100);
        }
    }
}

static void check_atomics(void)
{
    for (int i = 0; i < ATOMICS; i++)
        VERIFY(hiroba_load(atomics[i]) == atomic_expected[i] && *atomics[i] == atomic_expected[i],
               "atomic %d is %lu, and %lu to a plain load, not %lu", i, (unsigned long)hiroba_load(atomics[i]),
               (unsigned long)*atomics[i], (unsigned long)atomic_expected[i]);
}

static void fill_block(struct slot *slot, size_t bytes, uint64_t tag)
{
    for (size_t i = 0; i < bytes; i++)
        slot->block[i] = (unsigned char)(tag + i * 3);
    slot->bytes = bytes;
    slot->tag = tag;
}

static void check_block(const struct slot *slot, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        VERIFY(slot->block[i] == (unsigned char)(slot->tag + i * 3), "byte %lu of the block of %lu bytes at %p is %d",
               (unsigned long)i, (unsigned long)slot->bytes, (void *)slot->block, slot->block[i]);
}

static size_t block_bytes(struct generator *generator)
{
    static const uint32_t longest[] = {40, 300, 300, 5000, 30000};
    return 1 + draw(generator, longest[draw(generator, 5)]);
}

static void new_block(struct slot *slot, struct generator *generator)
{
    size_t bytes = block_bytes(generator), align = (size_t)16 << draw(generator, 9);
    switch (draw(generator, 3)) {
    case 0:
        slot->block = hiroba_malloc(bytes);
        break;
    case 1:
        slot->block = hiroba_calloc(bytes, 1);
        for (size_t i = 0; slot->block != NULL && i < bytes; i++)
            VERIFY(slot->block[i] == 0, "byte %lu of hiroba_calloc is %d", (unsigned long)i, slot->block[i]);
        break;
    default:
        slot->block = hiroba_aligned_alloc(align, bytes);
        VERIFY((uintptr_t)slot->block % align == 0, "%p is not aligned to %lu", (void *)slot->block, (unsigned long)align);
    }
    VERIFY(slot->block != NULL, "no block of %lu bytes: %s", (unsigned long)bytes, hiroba_error_string());
    fill_block(slot, bytes, draw(generator, 1 << 20));
}

/* Blocks go from thread to thread under locks. */
static void block_steps(int me)
{
    struct generator generator = of_thread(me);
    for (int pass = 0; pass < 15; pass++) {
        uint32_t which = draw(&generator, SLOTS);
        struct slot *slot = &slots[which];
        hiroba_lock(SLOT_LOCK + which % SLOT_LOCKS);
        if (slot->block == NULL) {
            new_block(slot, &generator);
        } else {
            check_block(slot, slot->bytes);
            uint32_t what = draw(&generator, 4);
            if (what == 0) {
                size_t bytes = block_bytes(&generator);
                slot->block = hiroba_realloc(slot->block, bytes);
                VERIFY(slot->block != NULL, "no room for %lu bytes", (unsigned long)bytes);
                check_block(slot, bytes < slot->bytes ? bytes : slot->bytes);
                fill_block(slot, bytes, slot->tag + 1);
            } else if (what < 3) {
                hiroba_free(slot->block);
                slot->block = NULL;
            } else {
                fill_block(slot, slot->bytes, slot->tag + 7);
            }
        }
        hiroba_unlock(SLOT_LOCK + which % SLOT_LOCKS);
    }
}

static unsigned char buffer_byte(size_t i, int thread)
{
    return (unsigned char)(i * 5 + i / 251 + phase + (uint32_t)thread);
}

static void check_buffer(const unsigned char *bytes, int thread, const char *after)
{
    for (size_t i = 0; i < BUFFER; i++)
        VERIFY(bytes[i] == buffer_byte(i, thread), "after %s byte %lu is %d, not %d", after, (unsigned long)i, bytes[i],
               buffer_byte(i, thread));
}

/* Another thread, mostly of another node, writes this thread's buffer; then the kernel reads and writes
 * it. */
static void system_steps(int me, int threads)
{
    unsigned char *mine = buffers + (size_t)me * BUFFER;
    int other = (me + per_node) % threads;
    unsigned char *others = buffers + (size_t)other * BUFFER;
    static _Thread_local unsigned char aside[BUFFER];
    for (size_t i = 0; i < BUFFER; i++)
        others[i] = buffer_byte(i, other);
    hiroba_barrier();
    FILE *file = tmpfile();
    VERIFY(file != NULL, "no temporary file: %s", strerror(errno));
    int fd = fileno(file), pair[2];
    VERIFY(write(fd, mine, BUFFER) == BUFFER, "write: %s", strerror(errno));
    VERIFY(pread(fd, aside, BUFFER, 0) == BUFFER, "pread: %s", strerror(errno));
    check_buffer(aside, me, "write");
    hiroba_barrier();
    memset(others, 0, BUFFER);
    hiroba_barrier();
    struct iovec parts[2] = {{mine, 5000}, {mine + 5000, BUFFER - 5000}};
    VERIFY(preadv(fd, parts, 2, 0) == BUFFER, "preadv: %s", strerror(errno));
    check_buffer(mine, me, "preadv");
    fclose(file);
    hiroba_barrier();
    for (size_t i = 0; i < BUFFER; i++)
        others[i] = buffer_byte(i, other + 1);
    hiroba_barrier();
    VERIFY(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0, "socketpair: %s", strerror(errno));
    VERIFY(send(pair[0], mine, BUFFER, 0) == BUFFER, "send: %s", strerror(errno));
    VERIFY(recv(pair[1], aside, BUFFER, 0) == BUFFER, "recv: %s", strerror(errno));
    check_buffer(aside, me + 1, "send");
    VERIFY(send(pair[1], aside, BUFFER, 0) == BUFFER, "send: %s", strerror(errno));
    hiroba_barrier();
    memset(others, 1, BUFFER);
    hiroba_barrier();
    VERIFY(recv(pair[0], mine, BUFFER, 0) == BUFFER, "recv: %s", strerror(errno));
    check_buffer(mine, me + 1, "recv");
    close(pair[0]);
    close(pair[1]);
}

static void region_steps(int me, int threads)
{
    size_t bytes = 1 + mix(phase, 1, 1) % 50000;
    hiroba_options options = {.page_bytes = (size_t)4096 << mix(phase, 2, 2) % 10, .placement = (hiroba_placement)(phase % 2)};
    unsigned char *region = hiroba_alloc_with(bytes, &options);
    VERIFY(region != NULL, "no region of %lu bytes: %s", (unsigned long)bytes, hiroba_error_string());
    for (size_t i = (size_t)me; i < bytes; i += (size_t)threads) {
        VERIFY(region[i] == 0, "byte %lu of a new region is %d", (unsigned long)i, region[i]);
        region[i] = (unsigned char)(i + phase);
    }
    hiroba_barrier();
    for (size_t i = (size_t)me; i < bytes; i += 7)
        VERIFY(region[i] == (unsigned char)(i + phase), "byte %lu of a new region is %d", (unsigned long)i, region[i]);
}

/* --- Running the phases ------------------------------------------------------------------------------- */

static void steps(int me, int threads)
{
    switch (kind) {
    case CELL_PHASE:
        cell_steps(me, threads);
        break;
    case RECORD_PHASE:
        record_steps(me);
        break;
    case QUEUE_PHASE:
        queue_steps(me, threads);
        break;
    case ATOMIC_PHASE:
        atomic_steps(me);
        break;
    case BLOCK_PHASE:
        block_steps(me);
        break;
    case SYSTEM_PHASE:
        system_steps(me, threads);
        break;
    case REGION_PHASE:
        region_steps(me, threads);
        break;
    case OWN_PHASE:
    case KINDS:
        break;
    }
}

static void in_run(void *argument)
{
    (void)argument;
    steps(hiroba_thread(), hiroba_threads());
}

static void *by_itself(void *argument)
{
    record_steps((int)(intptr_t)argument);
    return argument;
}

/* The program's own threads work on records while main threads write cells and meet. */
static void beside_own_threads(void)
{
    pthread_t threads[OWN_THREADS];
    for (int i = 0; i < OWN_THREADS; i++) {
        intptr_t number = hiroba_node() * OWN_THREADS + i;
        VERIFY(pthread_create(&threads[i], NULL, by_itself, (void *)number) == 0, "no thread");
    }
    for (int meeting = 0; meeting < 6; meeting++) {
        cell_steps(hiroba_node(), nodes);
        cells_done(nodes);
        hiroba_barrier();
    }
    for (int i = 0; i < OWN_THREADS; i++)
        VERIFY(pthread_join(threads[i], NULL) == 0, "no end of a thread");
    hiroba_barrier();
    records_done(0, OWN_THREADS * nodes);
    check_records();
}

static void play(void)
{
    int runs = kind != OWN_PHASE && mix(phase, 8, 8) % 2 == 0;
    int threads = runs ? nodes * per_node : nodes;
    if (kind == OWN_PHASE)
        beside_own_threads();
    else if (runs)
        VERIFY(hiroba_run(in_run, NULL) == 0, "%s", hiroba_error_string());
    else
        steps(hiroba_node(), nodes);
    hiroba_barrier();
    if (kind == CELL_PHASE)
        cells_done(threads);
    if (kind == RECORD_PHASE) {
        records_done(0, threads);
        check_records();
    }
    if (kind == ATOMIC_PHASE) {
        atomics_done(threads);
        check_atomics();
    }
    regions_made += kind == REGION_PHASE;
}

static void count_threads(void *argument)
{
    (void)argument;
    if (hiroba_thread() % (hiroba_threads() / hiroba_nodes()) == 0)
        per_node = hiroba_threads() / hiroba_nodes();
}

int main(int argc, char **argv)
{
    CHECK(argc > 1, "expected the time in seconds, and perhaps a seed");
    double seconds = strtod(argv[1], NULL);
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    join(&argc, &argv);
    nodes = hiroba_nodes();
    CHECK(hiroba_run(count_threads, NULL) == 0, "%s", hiroba_error_string());
    CHECK(nodes * (per_node > OWN_THREADS ? per_node : OWN_THREADS) <= THREADS_MAX, "too many threads for this program");
    deal_all();
    unsigned played[KINDS] = {0};
    double began = hiroba_wtime();
    for (phase = 1;; phase++) {
        uint32_t *goes_on = &go[phase % 2];
        if (hiroba_node() == 0)
            *goes_on = hiroba_wtime() - began < seconds;
        hiroba_barrier();
        if (!*goes_on)
            break;
        kind = (enum kind)(mix(phase, 6, 6) % KINDS);
        if (kind == REGION_PHASE && regions_made == REGIONS_MADE_MAX)
            kind = CELL_PHASE; /* regions are never freed */
        play();
        played[kind]++;
    }
    check_records();
    check_atomics();
    if (hiroba_node() == 0) {
        printf("soak: seed %lu, %.0f s on %d nodes with %d threads each: %u phases", (unsigned long)seed, seconds, nodes, per_node,
               (unsigned)phase - 1);
        for (int i = 0; i < KINDS; i++)
            printf(", %u %s", played[i], names[i]);
        printf("\n");
    }
    hiroba_finalize();
    return 0;
}
