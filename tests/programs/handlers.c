/*
 * Proves: a program's own handlers of SIGSEGV and SIGBUS get the program's own faults, whether installed
 * before or after hiroba_init, and the program reads back what it installed. Masks that block every signal
 * stop no fault. Handlers on a small alternate stack, and nested ones, may access shared memory.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 8 };

static volatile unsigned char *memory; /* PAGES for each node */
static unsigned char *forbidden;
static sigjmp_buf back;
static volatile sig_atomic_t segmentations, buses, users;
static void *volatile fault_address;

static void on_segmentation(int number, siginfo_t *info, void *context)
{
    (void)context;
    fault_address = info->si_addr;
    segmentations++;
    memory[PAGE * (hiroba_node() * PAGES + 1) + 3]++; /* absent */
    siglongjmp(back, number);
}

static void on_plain(int number)
{
    segmentations++;
    siglongjmp(back, number);
}

static void on_bus(int number)
{
    (void)number;
    buses++;
}

static void touch_forbidden(void)
{
    int before = segmentations;
    if (sigsetjmp(back, 1) == 0) {
        *(volatile unsigned char *)forbidden = 1;
        CHECK(0, "a forbidden store went through");
    }
    CHECK(segmentations == before + 1, "the program's handler did not run");
}

/* Collective: the next node writes all pages of this node. */
static void make_absent(void)
{
    hiroba_barrier();
    int other = (hiroba_node() + 1) % hiroba_nodes();
    for (int page = 0; page < PAGES; page++)
        memory[(size_t)PAGE * (size_t)(other * PAGES + page)]++;
    hiroba_barrier();
}

static int sum(void)
{
    int sum = 0;
    for (int page = 0; page < PAGES; page++)
        sum += memory[(size_t)PAGE * (size_t)(hiroba_node() * PAGES + page)];
    return sum;
}

static void on_user(int number)
{
    users++;
    sum();
    if (number == SIGUSR1) {
        raise(SIGUSR2);
        users++;
    }
}

static void install(int number, void (*handler)(int), int flags)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigfillset(&action.sa_mask);
    CHECK(sigaction(number, &action, NULL) == 0, "sigaction failed");
    struct sigaction told;
    CHECK(sigaction(number, NULL, &told) == 0, "sigaction failed");
    CHECK(told.sa_handler == handler, "another handler was told of");
    CHECK(sigismember(&told.sa_mask, SIGSEGV) == 1 && sigismember(&told.sa_mask, SIGBUS) == 1,
          "the mask that was told of lacks what was set");
}

static void masks(void)
{
    sigset_t all, before, told;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, &before) == 0, "sigprocmask failed");
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &told) == 0, "pthread_sigmask failed");
    CHECK(sigismember(&told, SIGSEGV) == 1 && sigismember(&told, SIGBUS) == 1 && sigismember(&told, SIGUSR1) == 1,
          "the mask that was set is not told of");
    make_absent();
    sum();
    sigset_t faults;
    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    sigaddset(&faults, SIGBUS);
    CHECK(sigprocmask(SIG_UNBLOCK, &faults, NULL) == 0, "sigprocmask failed");
    CHECK(sigprocmask(SIG_BLOCK, NULL, &told) == 0, "sigprocmask failed");
    CHECK(sigismember(&told, SIGSEGV) == 0 && sigismember(&told, SIGUSR1) == 1, "unblocking is not told of");
    /* A mask for a wait. */
    make_absent();
    CHECK(ppoll(NULL, 0, &(struct timespec){0, 1000}, &all) == 0, "ppoll failed");
    sum();
    CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0, "sigprocmask failed");
}

int main(int argc, char **argv)
{
    int before_init = argc > 1;
    forbidden = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action, told;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_segmentation;
    action.sa_flags = SA_SIGINFO;
    if (before_init) {
        CHECK(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction failed");
        signal(SIGBUS, on_bus);
    }
    join(&argc, &argv);
    memory = shared((size_t)PAGE * PAGES * (size_t)hiroba_nodes());
    if (!before_init) {
        CHECK(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction failed");
        CHECK(signal(SIGBUS, on_bus) != SIG_ERR, "signal failed");
    }
    CHECK(sigaction(SIGSEGV, NULL, &told) == 0 && told.sa_sigaction == on_segmentation, "another handler is told of");
    CHECK(signal(SIGBUS, on_bus) == on_bus, "another handler is told of");

    for (int round = 0; round < 5; round++) {
        make_absent();
        touch_forbidden();
        CHECK(fault_address == forbidden, "the fault's address was %p, not %p", fault_address, (void *)forbidden);
        sum();
    }
    CHECK(signal(SIGSEGV, on_plain) != SIG_ERR, "signal failed");
    touch_forbidden();
    raise(SIGBUS);
    CHECK(buses == 1, "SIGBUS was handled %d times", (int)buses);
    signal(SIGBUS, SIG_IGN);
    raise(SIGBUS);
    CHECK(buses == 1 && signal(SIGBUS, SIG_DFL) == SIG_IGN, "SIGBUS was not ignored");

    /* Other handlers, whose masks block every signal, nested and on a small alternate stack. */
    stack_t stack = {.ss_sp = malloc((size_t)SIGSTKSZ), .ss_size = (size_t)SIGSTKSZ}, found;
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaltstack(NULL, &found) == 0, "sigaltstack failed");
    CHECK(found.ss_sp == stack.ss_sp && found.ss_size == stack.ss_size, "another alternate stack is told of");
    install(SIGUSR1, on_user, SA_ONSTACK);
    install(SIGUSR2, on_user, SA_ONSTACK);
    for (int round = 0; round < 5; round++) {
        make_absent();
        raise(SIGUSR1);
        make_absent();
        raise(SIGUSR2);
    }
    CHECK(users == 20, "handlers ran %d times", (int)users);
    for (int round = 0; round < 3; round++)
        masks();
    touch_forbidden();
    hiroba_finalize();
    return 0;
}
