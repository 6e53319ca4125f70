/*
 * Proves: a node may fork. The child may compute, exec and exit. It has no shared memory: an access is a
 * segmentation fault with a message that says why, and calls fail or end the child with a message. The parent
 * and its memory are not affected. system, popen and posix_spawn work, also while other threads of the node
 * use shared memory.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { WORDS = 4096 };

static volatile uint32_t *words; /* WORDS for each node */
static volatile int stop;

static int status_of(pid_t child)
{
    int status = -1;
    CHECK(child > 0, "no child: %s", strerror(errno));
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %s", strerror(errno));
    return status;
}

/* Runs `act` in a child and reads the child's standard error into `said`. */
static int in_child(void (*act)(void), char *said, size_t bytes)
{
    int fds[2];
    CHECK(pipe(fds) == 0, "no pipe");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(fds[1], 2);
        act();
        _exit(0);
    }
    close(fds[1]);
    size_t filled = 0;
    ssize_t got;
    while (filled + 1 < bytes && (got = read(fds[0], said + filled, bytes - 1 - filled)) > 0)
        filled += (size_t)got;
    said[filled] = 0;
    close(fds[0]);
    return status_of(child);
}

static void load(void)
{
    _exit(words[0] > 0 ? 1 : 2);
}

static void store(void)
{
    words[(size_t)hiroba_node() * WORDS] = 77;
}

static void store_to_anothers(void)
{
    words[(size_t)((hiroba_node() + 1) % hiroba_nodes()) * WORDS + 5] = 77;
}

static void wait_in_barrier(void)
{
    hiroba_barrier();
}

static void take_a_lock(void)
{
    hiroba_lock(1);
}

static void add(void)
{
    hiroba_fetch_add((uint64_t *)(uintptr_t)words, 1);
}

/* Calls that can report a failure. */
static void fail(void)
{
    int bad = 0;
    errno = 0;
    bad |= (hiroba_malloc(10) != NULL || errno != EPERM) << 0;
    errno = 0;
    bad |= (hiroba_alloc(10) != NULL || errno != EPERM) << 1;
    bad |= (hiroba_init(NULL, NULL) >= 0) << 2;
    bad |= (hiroba_error_string()[0] == 0) << 3;
    bad |= (hiroba_run(NULL, NULL) >= 0) << 4;
    bad |= (hiroba_prefetch((const void *)(uintptr_t)words, 10) >= 0) << 5;
    hiroba_finalize(); /* does nothing */
    _exit(bad);
}

/* Things that a child may do, including a regular exit. */
static void compute(void)
{
    char *block = malloc(100000);
    memset(block, 1, 100000);
    free(block);
    exit(0); /* must not leave the job for the parent */
}

static void children(void)
{
    char said[2000];
    void (*touches[])(void) = {load, store, store_to_anothers};
    for (int i = 0; i < 3; i++) {
        int status = in_child(touches[i], said, sizeof said);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "touch %d ended a child with status %#x: %s", i, status, said);
        CHECK(strstr(said, "segmentation fault") != NULL && strstr(said, "fork") != NULL, "touch %d: the child said: %s", i, said);
    }
    void (*calls[])(void) = {wait_in_barrier, take_a_lock, add};
    for (int i = 0; i < 3; i++) {
        int status = in_child(calls[i], said, sizeof said);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 125, "call %d ended a child with status %#x: %s", i, status, said);
        CHECK(strncmp(said, "hiroba: hiroba_", 15) == 0, "call %d: the child said: %s", i, said);
    }
    int status = in_child(fail, said, sizeof said);
    CHECK(status == 0, "calls in a child did not fail as they should: %#x", status);
    status = in_child(compute, said, sizeof said);
    CHECK(status == 0 && said[0] == 0, "a child that exits: %#x: %s", status, said);
}

static void programs(void)
{
    fflush(NULL);
    int status = system("exit 7");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "system gave %#x", status);
    status = system("case \"$LD_PRELOAD\" in *libhiroba*) exit 1;; esac");
    CHECK(status == 0, "children are preloaded with a library that is not for them");
    char line[100] = "";
    FILE *stream = popen("echo popped", "r");
    CHECK(stream != NULL && fgets(line, sizeof line, stream) != NULL, "popen: %s", strerror(errno));
    CHECK(strcmp(line, "popped\n") == 0 && pclose(stream) == 0, "popen gave '%s'", line);
    pid_t child;
    char *arguments[] = {"sh", "-c", "exit 9", NULL};
    CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0, "posix_spawn failed");
    status = status_of(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 9, "the spawned program ended with %#x", status);
    child = fork();
    if (child == 0) {
        execv("/bin/sh", arguments);
        _exit(99);
    }
    status = status_of(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 9, "the program that was executed ended with %#x", status);
}

static volatile uint32_t *mine_of(int node)
{
    return words + (size_t)node * WORDS;
}

static void fill(uint32_t round)
{
    volatile uint32_t *others = mine_of((hiroba_node() + 1) % hiroba_nodes());
    for (uint32_t i = 0; i < WORDS; i++)
        others[i] = round * 100000 + i;
    hiroba_barrier();
}

static void check_filled(uint32_t round)
{
    for (int node = 0; node < hiroba_nodes(); node++)
        for (uint32_t i = 0; i < WORDS; i++)
            CHECK(mine_of(node)[i] == round * 100000 + i, "word %u of node %d is %u", (unsigned)i, node,
                  (unsigned)mine_of(node)[i]);
    hiroba_barrier();
}

/* Works while the main thread forks. */
static void *work(void *argument)
{
    uint64_t *counter = argument;
    uint64_t added = 0;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        hiroba_lock(2);
        counter[1]++;
        hiroba_unlock(2);
        hiroba_fetch_add(counter, 1);
        hiroba_free(hiroba_malloc(100));
        added++;
    }
    return (void *)(uintptr_t)added;
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    words = shared((size_t)hiroba_nodes() * WORDS * sizeof *words);
    uint64_t *counter = shared(3 * sizeof *counter);
    for (uint32_t round = 1; round <= 2; round++) {
        fill(round);
        children(); /* this node's words are absent at first */
        programs();
        check_filled(round);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, counter) == 0, "no thread");
    for (uint32_t round = 3; round <= 6; round++) {
        fill(round);
        programs();
        if (round % 2 == 0)
            children();
        check_filled(round);
    }
    stop = 1;
    void *added;
    CHECK(pthread_join(thread, &added) == 0, "the thread does not end");
    hiroba_fetch_add(&counter[2], (uint64_t)(uintptr_t)added);
    hiroba_barrier();
    CHECK(counter[0] == counter[2] && counter[1] == counter[2], "counted %lu, %lu and %lu", (unsigned long)counter[0],
          (unsigned long)counter[1], (unsigned long)counter[2]);
    hiroba_finalize();
    return 0;
}
