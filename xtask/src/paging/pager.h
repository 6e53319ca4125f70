/*
 * A pager of the usual form over userfaultfd(2), without Hiroba, for comparison: one thread reads the faults,
 * brings each missing piece of the region in from a file (pread, UFFDIO_COPY), and has the oldest piece leave
 * when too many are in memory (pwrite if it was written, MADV_DONTNEED). Pieces that come for a load are
 * write-protected, so that the first store shows that they must be written back. Only one thread may use the
 * region: it waits in its fault while a piece leaves, so that no store to the piece is lost.
 */
#ifndef PAGER_H
#define PAGER_H

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void require(int condition, const char *what);

static struct {
    int faults, file;
    char *start, *buffer;
    size_t bytes, piece_bytes;
    /* Pieces in memory, the oldest first, as a ring. */
    size_t *ring, pieces_max, first, count;
    /* By piece: true if it was written since it came. */
    unsigned char *written;
} pager;

static void pager_evict_oldest(void)
{
    size_t piece = pager.ring[pager.first];
    char *start = pager.start + piece * pager.piece_bytes;
    pager.first = (pager.first + 1) % pager.pieces_max;
    pager.count--;
    if (pager.written[piece]) {
        ssize_t left = pwrite(pager.file, start, pager.piece_bytes, (off_t)(piece * pager.piece_bytes));
        require(left == (ssize_t)pager.piece_bytes, "a write failed");
        pager.written[piece] = 0;
    }
    require(madvise(start, pager.piece_bytes, MADV_DONTNEED) == 0, "a piece cannot leave");
}

static void pager_bring_in(size_t piece, int is_store)
{
    if (pager.count == pager.pieces_max)
        pager_evict_oldest();
    off_t offset = (off_t)(piece * pager.piece_bytes);
    ssize_t came = pread(pager.file, pager.buffer, pager.piece_bytes, offset);
    require(came == (ssize_t)pager.piece_bytes, "a read failed");
    pager.written[piece] = is_store != 0;
    pager.ring[(pager.first + pager.count++) % pager.pieces_max] = piece;
    struct uffdio_copy copy = {
        .dst = (uintptr_t)(pager.start + piece * pager.piece_bytes),
        .src = (uintptr_t)pager.buffer,
        .len = pager.piece_bytes,
        .mode = is_store ? 0 : UFFDIO_COPY_MODE_WP,
    };
    require(ioctl(pager.faults, UFFDIO_COPY, &copy) == 0, "a piece cannot be mapped");
}

static void *pager_serve(void *unused)
{
    struct uffd_msg fault;
    for (;;) {
        ssize_t got = read(pager.faults, &fault, sizeof fault);
        if (got < 0 && errno == EINTR)
            continue;
        require(got == sizeof fault && fault.event == UFFD_EVENT_PAGEFAULT, "expected a fault");
        size_t piece = ((uintptr_t)fault.arg.pagefault.address - (uintptr_t)pager.start) / pager.piece_bytes;
        uint64_t flags = fault.arg.pagefault.flags;
        if (flags & UFFD_PAGEFAULT_FLAG_WP) {
            struct uffdio_writeprotect open = {
                .range = { (uintptr_t)(pager.start + piece * pager.piece_bytes), pager.piece_bytes },
            };
            pager.written[piece] = 1;
            require(ioctl(pager.faults, UFFDIO_WRITEPROTECT, &open) == 0, "a piece cannot be made writable");
        } else {
            pager_bring_in(piece, (flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0);
        }
    }
    return unused;
}

/* Returns a region that a file contains, of which `limit` bytes may be in memory, in pieces. Called once; the
 * region and its thread last as long as the process. */
static void *pager_open(int file, size_t bytes, size_t limit, size_t piece_bytes)
{
    require(bytes % piece_bytes == 0 && limit >= piece_bytes, "expected a region of whole pieces");
    pager.faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    require(pager.faults >= 0, "userfaultfd is not permitted");
    struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP };
    require(ioctl(pager.faults, UFFDIO_API, &api) == 0, "userfaultfd lacks write protection");
    pager.file = file;
    pager.bytes = bytes;
    pager.piece_bytes = piece_bytes;
    pager.pieces_max = limit / piece_bytes;
    pager.ring = malloc(pager.pieces_max * sizeof *pager.ring);
    pager.written = calloc(bytes / piece_bytes, 1);
    pager.buffer = aligned_alloc(4096, piece_bytes);
    require(pager.ring != NULL && pager.written != NULL && pager.buffer != NULL, "no private memory");
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    pager.start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind, -1, 0);
    require(pager.start != MAP_FAILED, "no addresses");
    /* Otherwise a huge page would come for one small one. */
    require(madvise(pager.start, bytes, MADV_NOHUGEPAGE) == 0 || errno == EINVAL, "no small pages");
    struct uffdio_register all = {
        .range = { (uintptr_t)pager.start, bytes },
        .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
    };
    require(ioctl(pager.faults, UFFDIO_REGISTER, &all) == 0, "the region cannot be registered");
    pthread_t thread;
    require(pthread_create(&thread, NULL, pager_serve, NULL) == 0, "no thread");
    return pager.start;
}

#endif
