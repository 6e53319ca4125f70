/* bare_fault.c - measures what a page fault costs on this machine without any runtime: the lower bound for
 * `hiroba bench fault`.
 *
 *     cc -O2 -o bare_fault apps/bare_fault.c -lpthread && ./bare_fault; taskset -c 0 ./bare_fault
 *
 * The program reads a page whose frame exists but is not mapped; the handler only maps it
 * (UFFDIO_CONTINUE). With SIGBUS the handler runs in the thread that faulted. With events it runs in
 * another thread, which `taskset` puts on the same processor. Needs Linux 5.14; the events need root. See
 * userfaultfd(2). Hiroba is not used, so nothing is fitted. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGES = 4000, ROUNDS = 101 };
static const size_t BYTES = (size_t)PAGES * 4096;
static int uffd;

static void map_page(uintptr_t address)
{
    struct uffdio_continue page = {.range = {address & ~(uintptr_t)4095, 4096}};
    ioctl(uffd, UFFDIO_CONTINUE, &page);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    map_page((uintptr_t)info->si_addr);
}

static void *on_events(void *unused)
{
    for (;;) {
        struct uffd_msg message;
        struct pollfd source = {.fd = uffd, .events = POLLIN};
        poll(&source, 1, -1);
        if (read(uffd, &message, sizeof message) == sizeof message)
            map_page(message.arg.pagefault.address);
    }
    return unused;
}

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void measure(const char *name, uint64_t feature, int flags)
{
    int frames = memfd_create("frames", 0);
    if (frames < 0 || ftruncate(frames, (off_t)BYTES) != 0) {
        perror("memfd");
        exit(1);
    }
    char *filled = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, frames, 0);
    volatile char *view = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, frames, 0);
    for (size_t at = 0; at < BYTES; at += 4096)
        filled[at] = 1;
    uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MINOR_SHMEM | feature};
    struct uffdio_register range = {.range = {(uintptr_t)view, BYTES}, .mode = UFFDIO_REGISTER_MODE_MINOR};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) != 0 || ioctl(uffd, UFFDIO_REGISTER, &range) != 0) {
        printf("%-8s not available here\n", name);
        return;
    }
    if (feature != 0) {
        struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER};
        sigaction(SIGBUS, &action, NULL);
    } else {
        pthread_t thread;
        pthread_create(&thread, NULL, on_events, NULL);
    }
    static double round_us[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        madvise((void *)view, BYTES, MADV_DONTNEED);
        double began = now_us();
        for (size_t at = 0; at < BYTES; at += 4096)
            (void)view[at];
        round_us[round] = (now_us() - began) / PAGES;
    }
    qsort(round_us, ROUNDS, sizeof *round_us, ascending);
    printf("%-8s %.2f us a fault\n", name, round_us[ROUNDS / 2]);
}

int main(void)
{
    measure("sigbus", UFFD_FEATURE_SIGBUS, UFFD_USER_MODE_ONLY);
    measure("event", 0, 0);
    fflush(stdout);
    _exit(0);
}
