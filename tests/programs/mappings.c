/*
 * Proves: system calls that change how memory is mapped do to shared memory what hiroba.h says, on every
 * node, and keep it coherent. Locking works, code in shared memory can be executed, and an unsupported call
 * is refused with errno and a message. Arguments: `long` executes parts of the job's pages; `raw` makes calls
 * that the library does not intercept, which do no harm; `before` locks all memory before it joins; `data`
 * executes data, and `taken` removes access without the library, which both end the program.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "check.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum { PAGES = 40 };

#define FAILED(what) what " failed: %s", strerror(errno)
#define REFUSES(call, number)                                                                                    \
    do {                                                                                                         \
        errno = 0;                                                                                               \
        CHECK((intptr_t)(call) == -1 && errno == (number), #call " gave %s", strerror(errno));                   \
        CHECK(strchr(hiroba_error_string(), ':') != NULL, #call " said \"%s\"", hiroba_error_string());          \
    } while (0)
#define WORKS(call) CHECK((call) == 0, #call " failed: %s", strerror(errno))

static size_t page;
static int node, nodes;
static unsigned char *memory;
static unsigned round_number;

static unsigned char value(size_t i, unsigned round)
{
    return (unsigned char)(i * 7 + i / page * 13 + round * 31 + 1);
}

/* One node writes the whole memory, and all nodes see that. Then every node writes. */
static void coherent(const char *after)
{
    round_number++;
    if (node == (int)(round_number % (unsigned)nodes))
        for (size_t i = 0; i < PAGES * page; i += 5)
            memory[i] = value(i, round_number);
    hiroba_barrier();
    for (size_t i = 0; i < PAGES * page; i += 5)
        CHECK(memory[i] == value(i, round_number), "after %s byte %lu is %d", after, (unsigned long)i, memory[i]);
    hiroba_barrier();
    /* Every node writes to every page. */
    for (size_t i = (size_t)node * 5 + 1; i < PAGES * page; i += page)
        memory[i] = value(i, round_number);
    hiroba_barrier();
    for (int other = 0; other < nodes; other++)
        for (size_t i = (size_t)other * 5 + 1; i < PAGES * page; i += page)
            CHECK(memory[i] == value(i, round_number), "after %s byte %lu of node %d is %d", after,
                  (unsigned long)i, other, memory[i]);
    hiroba_barrier();
}

static long locked_kilobytes(void)
{
    long kilobytes = -1;
    char line[200];
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status != NULL, FAILED("fopen"));
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "VmLck: %ld", &kilobytes) == 1)
            break;
    fclose(status);
    return kilobytes;
}

static long resident_kilobytes(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0, FAILED("getrusage"));
    return usage.ru_maxrss;
}

/* --- Locking ---------------------------------------------------------------------------------------- */

static void locking(void)
{
    unsigned char *end = memory + PAGES * page;
    long before = locked_kilobytes();
    WORKS(mlock(memory + 1, 3 * page));
    CHECK(locked_kilobytes() - before == 4 * (long)page / 1024, "%ld KiB are locked", locked_kilobytes() - before);
    coherent("mlock");
    WORKS(mlock2(memory + 8 * page, 2 * page, MLOCK_ONFAULT));
    coherent("mlock2");
    WORKS(munlock(memory, 12 * page));
    CHECK(locked_kilobytes() == before, "%ld KiB are locked still", locked_kilobytes() - before);
    WORKS(mlock(memory, 0));
    WORKS(munlock(memory, 0));
    REFUSES(mlock(end - page, 2 * page), ENOMEM); /* the page after a region is not allocated */
    REFUSES(munlock(end, 1), ENOMEM);
    CHECK(mlock2(memory, page, 64) == -1 && errno == EINVAL, FAILED("mlock2 with a flag that does not exist"));
    CHECK(mlock(memory, PTRDIFF_MAX) == -1, "all of the address space was locked");
    coherent("munlock");
}

static int may_lock_all(void)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0, FAILED("getrlimit"));
    return geteuid() == 0 || limit.rlim_cur == RLIM_INFINITY;
}

/* Neither call fills the 16 TiB of shared addresses, and pages still come and go. */
static void locking_all(void)
{
    if (!may_lock_all()) {
        REFUSES(mlockall(MCL_CURRENT), ENOMEM);
        REFUSES(mlockall(MCL_CURRENT | MCL_FUTURE), ENOMEM);
        coherent("mlockall that was refused");
        return;
    }
    CHECK(mlockall(0) == -1 && errno == EINVAL, FAILED("mlockall(0)"));
    CHECK(mlockall(MCL_ONFAULT) == -1 && errno == EINVAL, FAILED("mlockall(MCL_ONFAULT)"));
    int flags[] = {MCL_CURRENT, MCL_FUTURE, MCL_CURRENT | MCL_FUTURE, MCL_CURRENT | MCL_ONFAULT,
                   MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        WORKS(mlockall(flags[i]));
        if (flags[i] & MCL_CURRENT)
            CHECK(locked_kilobytes() > 100, "mlockall has locked %ld KiB", locked_kilobytes());
        CHECK(locked_kilobytes() < 4 << 20, "mlockall has locked %ld KiB", locked_kilobytes());
        CHECK(resident_kilobytes() < 2 << 20, "mlockall made %ld KiB resident", resident_kilobytes());
        coherent("mlockall");
        unsigned char *more = shared(3 * page), *block = hiroba_malloc(100000);
        CHECK(block != NULL, "%s", hiroba_error_string());
        more[(size_t)node * 100] = 1;
        memset(block, 1, 100000);
        hiroba_barrier();
        for (int other = 0; other < nodes; other++)
            CHECK(more[(size_t)other * 100] == 1, "what node %d wrote is not there", other);
        hiroba_free(block);
        hiroba_barrier();
    }
    WORKS(munlockall());
    CHECK(locked_kilobytes() == 0, "%ld KiB are locked", locked_kilobytes());
    coherent("munlockall");
}

/* --- Executing -------------------------------------------------------------------------------------- */

/* A function that returns a number, as the processor's code. */
static size_t write_code(unsigned char *at, unsigned number)
{
#if defined __x86_64__
    const unsigned char code[] = {0xb8, (unsigned char)number, (unsigned char)(number >> 8), 0, 0, 0xc3};
#elif defined __aarch64__
    unsigned words[] = {0x52800000 | number << 5, 0xd65f03c0};
    const unsigned char *code = (const unsigned char *)words;
#else
#error "this processor's code is not known here"
#endif
#if defined __aarch64__
    memcpy(at, code, sizeof words);
    return sizeof words;
#else
    memcpy(at, code, sizeof code);
    return sizeof code;
#endif
}

static unsigned call_code(unsigned char *at)
{
    union {
        unsigned char *bytes;
        unsigned (*function)(void);
    } code = {at};
    __builtin___clear_cache((char *)at, (char *)at + 16);
    return code.function();
}

static void executing(void)
{
    /* At the edges of pages, so that an instruction lies on two of them. */
    size_t places[] = {0, page - 2, 3 * page - 3, 8 * page - 1, 9 * page};
#if defined __aarch64__
    for (size_t i = 0; i < 5; i++)
        places[i] &= ~(size_t)3;
#endif
    int rights[] = {PROT_READ | PROT_WRITE | PROT_EXEC, PROT_READ | PROT_EXEC};
    for (int k = 0; k < 6; k++) {
        WORKS(mprotect(memory, 10 * page, rights[k % 2]));
        for (int writer = 0; writer < nodes; writer++) {
            unsigned number = (unsigned)(k * 100 + writer * 10 + 1);
            if (node == writer)
                for (int i = 0; i < 5; i++)
                    write_code(memory + places[i], number + (unsigned)i);
            hiroba_barrier();
            for (int i = 0; i < 5; i++) {
                unsigned got = call_code(memory + places[i]);
                CHECK(got == number + (unsigned)i, "the code at %lu gave %u, not %u", (unsigned long)places[i], got,
                      number + (unsigned)i);
            }
            hiroba_barrier();
        }
        /* Data beside the code and over it. */
        coherent("mprotect to execute");
        if (k == 2)
            WORKS(mprotect(memory, 10 * page, PROT_READ | PROT_WRITE));
        if (k == 3)
            WORKS(mprotect(memory + page, page, PROT_READ | PROT_WRITE));
        coherent("mprotect");
    }
    /* Each page separately: pages that travel together are in different mappings of the kernel. */
    for (size_t i = 0; i < PAGES; i += 2)
        WORKS(pkey_mprotect(memory + i * page, page, PROT_READ | PROT_WRITE | PROT_EXEC, -1));
    coherent("mprotect of every other page");
    WORKS(mprotect(memory, PAGES * page, PROT_READ | PROT_WRITE));
    coherent("mprotect of all pages");
    unsigned char *block = hiroba_aligned_alloc(page, page);
    CHECK(block != NULL, "%s", hiroba_error_string());
    WORKS(mprotect(block, page, PROT_READ | PROT_WRITE | PROT_EXEC));
    write_code(block, 77);
    CHECK(call_code(block) == 77, "code in a block gave something else");
    WORKS(mprotect(block, page, PROT_READ | PROT_WRITE));
    hiroba_free(block);
}

/* --- What is refused -------------------------------------------------------------------------------- */

static void refused(void)
{
    unsigned char *end = memory + PAGES * page;
    unsigned char *first = (unsigned char *)(uintptr_t)0x400000000000, *last = (unsigned char *)(uintptr_t)0x500000000000;
    CHECK(first <= memory && end < last, "the region has moved: this program is to be told where");
    REFUSES(mprotect(memory, page, PROT_NONE), ENOTSUP);
    REFUSES(mprotect(memory + page, 2 * page, PROT_READ), ENOTSUP);
    REFUSES(mprotect(memory, page, PROT_READ | PROT_WRITE | PROT_GROWSDOWN), ENOTSUP);
    REFUSES(mprotect(end - page, 2 * page, PROT_READ | PROT_WRITE), ENOMEM);
    REFUSES(mprotect(end, page, PROT_READ | PROT_EXEC), ENOMEM);
    REFUSES(mprotect(first - page, 2 * page, PROT_READ | PROT_WRITE), EINVAL);
    REFUSES(mprotect(last - page, 2 * page, PROT_READ | PROT_WRITE), EINVAL);
    REFUSES(pkey_mprotect(memory, page, PROT_READ | PROT_WRITE, 1), ENOTSUP);
    CHECK(mprotect(memory + 1, page, PROT_READ | PROT_WRITE) == -1 && errno == EINVAL, FAILED("unaligned mprotect"));
    CHECK(mprotect(memory, SIZE_MAX, PROT_NONE) == -1 && errno == ENOMEM, FAILED("mprotect of too much"));
    WORKS(mprotect(memory, 0, PROT_NONE));
    coherent("refused mprotect");

    REFUSES(munmap(memory, page), EINVAL);
    REFUSES(munmap(end + 5 * page, page), EINVAL);
    REFUSES(munmap(first - page, 2 * page), EINVAL);
    REFUSES(munmap(last - page, 2 * page), EINVAL);
    CHECK(munmap(memory, 0) == -1 && errno == EINVAL, FAILED("munmap of nothing"));
    CHECK(munmap(memory, SIZE_MAX) == -1 && errno == EINVAL, FAILED("munmap of too much"));
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    REFUSES(mmap(memory, page, PROT_READ, flags | MAP_FIXED, -1, 0), EINVAL);
    REFUSES(mmap(first - page, 2 * page, PROT_READ, flags | MAP_FIXED, -1, 0), EINVAL);
    CHECK(mmap(memory, page, PROT_READ, flags | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST,
          FAILED("mmap with MAP_FIXED_NOREPLACE"));
    unsigned char *other = mmap(memory, 4 * page, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(other != MAP_FAILED && (other >= last || other + 4 * page <= first), "a hint led to %p", (void *)other);
    REFUSES(mremap(memory, page, 2 * page, MREMAP_MAYMOVE), EINVAL);
    REFUSES(mremap(memory, 0, page, MREMAP_MAYMOVE), EINVAL);
    REFUSES(mremap(other, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, memory), EINVAL);
    REFUSES(remap_file_pages(memory, page, 0, 3, 0), EINVAL);
    int segment = shmget(IPC_PRIVATE, 2 * page, IPC_CREAT | 0600);
    CHECK(segment >= 0, FAILED("shmget"));
    REFUSES(shmat(segment, memory, SHM_REMAP), EINVAL);
    REFUSES(shmat(segment, first - page, SHM_REMAP), EINVAL);
    CHECK(shmat(segment, memory, 0) == (void *)-1 && errno == EINVAL, FAILED("shmat"));
    void *attached = shmat(segment, NULL, 0);
    CHECK(attached != (void *)-1, FAILED("shmat"));
    WORKS(shmdt(attached));
    WORKS(shmctl(segment, IPC_RMID, NULL));
    coherent("refused mappings");

    /* Private memory behaves as usual. */
    WORKS(mprotect(other, page, PROT_NONE));
    WORKS(mprotect(other, page, PROT_READ | PROT_WRITE));
    unsigned char *grown = mremap(other, 4 * page, 8 * page, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, FAILED("mremap"));
    WORKS(mlock(grown, page));
    WORKS(madvise(grown, page, MADV_WILLNEED));
    CHECK(mmap(grown, page, PROT_READ, flags | MAP_FIXED, -1, 0) == grown, FAILED("mmap"));
    WORKS(munmap(grown, 8 * page));
}

static void advice(void)
{
    unsigned char *end = memory + PAGES * page;
    int kept[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTFORK, MADV_HUGEPAGE,
                  MADV_NOHUGEPAGE, MADV_MERGEABLE, MADV_DODUMP, MADV_POPULATE_READ, MADV_POPULATE_WRITE};
    int broken[] = {MADV_DONTNEED, MADV_REMOVE, MADV_DOFORK, MADV_DONTDUMP, MADV_HWPOISON, 8, 18, 102, 103, 4711};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        CHECK(madvise(memory, PAGES * page, kept[i]) == 0, "advice %d failed: %s", kept[i], strerror(errno));
        coherent("advice");
    }
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        REFUSES(madvise(memory + page, 2 * page, broken[i]), EINVAL);
    REFUSES(madvise(end - page, 2 * page, MADV_NORMAL), ENOMEM);
    CHECK(madvise(memory + 1, page, MADV_NORMAL) == -1 && errno == EINVAL, FAILED("unaligned madvise"));
    WORKS(madvise(memory, 0, MADV_DONTNEED));
    for (int given = 0; given <= 4; given++)
        CHECK(posix_madvise(memory, 2 * page, given) == 0, "advice %d of POSIX failed", given);
    coherent("refused advice");

    WORKS(msync(memory, 2 * page, MS_SYNC));
    WORKS(msync(memory, 2 * page, MS_ASYNC | MS_INVALIDATE));
    /* The kernel fills a vector on a page that another node has just written. */
    coherent("msync");
    unsigned char *vector = memory + (size_t)(node + 2) * 5 * page;
    CHECK(*(volatile unsigned char *)(memory + page) == memory[page], "a page changes");
    WORKS(mincore(memory, 10 * page, vector));
    hiroba_barrier();
    CHECK(vector[1] & 1, "a page that was just read is not there");
    hiroba_barrier();
    coherent("mincore");
}

/* --- Calls that read and write memory by its address -------------------------------------------------- */

static void by_address(void)
{
    enum { BYTES = 9000 };
    static unsigned char mine[BYTES];
    for (int k = 0; k < 3; k++) {
        coherent("process_vm_writev");
        unsigned char *from = memory + 100, *to = memory + (size_t)(12 + 4 * node) * page + 50;
        struct iovec private_vector[2] = {{mine, 4000}, {mine + 4000, BYTES - 4000}};
        struct iovec shared_vector[2] = {{from, 3000}, {from + 3000, BYTES - 3000}};
        memset(mine, 0, sizeof mine);
        ssize_t moved = process_vm_readv(getpid(), private_vector, 2, shared_vector, 2, 0);
        CHECK(moved == BYTES, "process_vm_readv moved %ld: %s", (long)moved, strerror(errno));
        CHECK(memcmp(mine, from, BYTES) == 0, "process_vm_readv read something else");
        hiroba_barrier();
        struct iovec goal[2] = {{to, 5000}, {to + 5000, BYTES - 5000}};
        moved = process_vm_writev(getpid(), private_vector, 2, goal, 2, 0);
        CHECK(moved == BYTES, "process_vm_writev moved %ld: %s", (long)moved, strerror(errno));
        hiroba_barrier();
        for (int other = 0; other < nodes; other++)
            CHECK(memcmp(memory + (size_t)(12 + 4 * other) * page + 50, from, BYTES) == 0,
                  "process_vm_writev of node %d wrote something else", other);
        hiroba_barrier();
        /* From shared to shared memory, by the id of the thread. */
        coherent("process_vm_readv");
        moved = process_vm_readv((pid_t)syscall(SYS_gettid), goal, 2, shared_vector, 2, 0);
        CHECK(moved == BYTES, "process_vm_readv moved %ld: %s", (long)moved, strerror(errno));
        hiroba_barrier();
        CHECK(memcmp(memory + (size_t)(12 + 4 * ((node + 1) % nodes)) * page + 50, from, BYTES) == 0,
              "process_vm_readv into shared memory wrote something else");
        hiroba_barrier();
    }
    /* Another process has memory of its own at these addresses; here it is a child, which has none. */
    int gate[2];
    CHECK(pipe(gate) == 0, FAILED("pipe"));
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(gate[1]);
        _exit(read(gate[0], &byte, 1) != 0);
    }
    struct iovec local = {mine, 10}, remote = {memory, 10};
    errno = 0;
    CHECK(process_vm_readv(child, &local, 1, &remote, 1, 0) == -1 && (errno == EFAULT || errno == EPERM),
          FAILED("process_vm_readv of a child"));
    close(gate[0]);
    close(gate[1]);
}

static void splicing(void)
{
    enum { BYTES = 9000 };
    static unsigned char mine[BYTES];
    int fds[2];
    CHECK(pipe(fds) == 0, FAILED("pipe"));
    for (int k = 0; k < 3; k++) {
        coherent("vmsplice");
        struct iovec vector[2] = {{memory + 200, 3000}, {memory + 3200, BYTES - 3000}};
        ssize_t moved = vmsplice(fds[1], vector, 2, 0);
        CHECK(moved == BYTES, "vmsplice moved %ld: %s", (long)moved, strerror(errno));
        /* The pipe keeps its contents, whatever buffers other calls use. */
        int null = open("/dev/zero", O_RDONLY);
        CHECK(null >= 0 && read(null, memory + 30 * page + (size_t)node * page, page) == (ssize_t)page, FAILED("read"));
        close(null);
        for (size_t done = 0; done < BYTES;) {
            ssize_t got = read(fds[0], mine + done, BYTES - done);
            CHECK(got > 0, FAILED("read"));
            done += (size_t)got;
        }
        CHECK(memcmp(mine, memory + 200, BYTES) == 0, "vmsplice sent something else");
        hiroba_barrier();
        coherent("vmsplice");
        unsigned char *to = memory + (size_t)(12 + 4 * node) * page + 50;
        CHECK(write(fds[1], mine, BYTES) == BYTES, FAILED("write"));
        size_t done = 0;
        while (done < BYTES) {
            struct iovec rest = {to + done, BYTES - done};
            moved = vmsplice(fds[0], &rest, 1, 0);
            CHECK(moved > 0, FAILED("vmsplice from a pipe"));
            done += (size_t)moved;
        }
        hiroba_barrier();
        for (int other = 0; other < nodes; other++)
            CHECK(memcmp(memory + (size_t)(12 + 4 * other) * page + 50, mine, 10) == 0 || nodes > 1,
                  "vmsplice of node %d filled in something else", other);
        CHECK(memcmp(to, mine, BYTES) == 0, "vmsplice filled in something else");
        hiroba_barrier();
    }
    close(fds[0]);
    close(fds[1]);
}

/* --- Calls that the library does not intercept -------------------------------------------------------- */

static void raw(void)
{
    CHECK(syscall(SYS_mlock, memory, 4 * page) == 0 || errno == ENOMEM, FAILED("a raw mlock"));
    coherent("a raw mlock");
    CHECK(syscall(SYS_madvise, memory + page, 2 * page, MADV_RANDOM) == 0, FAILED("a raw madvise"));
    coherent("a raw madvise");
}

/* The region is mapped, and pages arrive, after the program has locked all future memory. */
static void lock_before(const char *how)
{
    if (strcmp(how, "before") == 0)
        WORKS(mlockall(MCL_CURRENT | MCL_FUTURE));
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    lock_before(how);
    join(&argc, &argv);
    node = hiroba_node();
    nodes = hiroba_nodes();
    page = (size_t)sysconf(_SC_PAGESIZE);
    /* Long pages are the job's pages, parts of which are executed. */
    hiroba_options options = {.page_bytes = strcmp(how, "long") == 0 ? 0 : page};
    memory = hiroba_alloc_with(PAGES * page, &options);
    CHECK(memory != NULL, "hiroba_alloc_with failed: %s", hiroba_error_string());
    coherent("the allocation");
    if (strcmp(how, "data") == 0) { /* Data are no code before mprotect. */
        write_code(memory, 1);
        return (int)call_code(memory) + 1;
    }
    if (strcmp(how, "taken") == 0) {
        syscall(SYS_mprotect, memory, page, PROT_NONE);
        return memory[0] + 256;
    }
    if (strcmp(how, "before") == 0) {
        CHECK(resident_kilobytes() < 2 << 20, "%ld KiB are resident", resident_kilobytes());
        hiroba_finalize();
        return 0;
    }
    if (strcmp(how, "raw") == 0) {
        raw();
        hiroba_finalize();
        return 0;
    }
    if (strcmp(how, "long") == 0) {
        executing();
        hiroba_finalize();
        return 0;
    }
    locking();
    executing();
    refused();
    advice();
    by_address();
    splicing();
    locking_all();
    hiroba_finalize();
    REFUSES(munmap(memory, page), EINVAL);
    REFUSES(mprotect(memory, page, PROT_READ | PROT_WRITE), ENOMEM);
    return 0;
}
