/*
 * Proves: an error that no correct program makes ends the job with one message, which names the error and the
 * thread that made it. The first argument chooses the mistake.
 */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "check.h"

static int node, nodes, last;
static const char *how;

static int is(const char *word)
{
    return strcmp(how, word) == 0;
}

static void *unlock_it(void *argument)
{
    hiroba_unlock(*(unsigned *)argument);
    return NULL;
}

static void locks(void)
{
    unsigned lock = 17;
    if (is("unlock-unheld") && last)
        hiroba_unlock(lock);
    if (is("unlock-anothers")) {
        if (node == 0)
            hiroba_lock(lock);
        hiroba_barrier();
        if (last)
            hiroba_unlock(lock);
    }
    if (is("unlock-siblings") && last) {
        pthread_t thread;
        hiroba_lock(lock);
        CHECK(pthread_create(&thread, NULL, unlock_it, &lock) == 0 && pthread_join(thread, NULL) == 0, "no thread");
    }
    if (is("lock-twice") && last) {
        hiroba_lock(lock);
        hiroba_lock(lock);
    }
    if (is("wait-without-lock") && last)
        hiroba_cond_wait(3, lock);
    if (is("finalize-with-lock")) {
        if (last)
            hiroba_lock(lock);
        hiroba_finalize();
    }
}

static void blocks(void **board)
{
    if (node == 0)
        board[0] = hiroba_malloc(40);
    hiroba_barrier();
    unsigned char *block = board[0];
    if (is("free-twice") && node == 0) {
        hiroba_free(block);
        hiroba_free(block);
    }
    if (is("free-twice-remotely")) {
        if (last)
            hiroba_free(block);
        hiroba_barrier();
        if (last)
            hiroba_free(block);
    }
    if (is("free-after-anothers")) {
        if (last)
            hiroba_free(block);
        hiroba_barrier();
        if (node == 0)
            hiroba_free(block);
    }
    if (is("free-inside") && last)
        hiroba_free(block + 16);
    if (is("free-region") && last)
        hiroba_free(board);
    if (is("free-private") && last)
        hiroba_free(&node);
    if (is("realloc-freed") && node == 0) {
        hiroba_free(block);
        hiroba_realloc(block, 100);
    }
}

static void *barrier(void *argument)
{
    hiroba_barrier();
    return argument;
}

static void in_run(void *argument)
{
    (void)argument;
    if (is("run-differs")) {
        if (hiroba_thread() == 0)
            hiroba_alloc(100);
        else
            hiroba_barrier();
    }
    if (is("run-ends-early") && hiroba_thread() != 0)
        hiroba_barrier();
    if (is("run-sizes-differ"))
        hiroba_alloc(100 + (size_t)hiroba_thread());
}

static void collectives(void **board)
{
    if (is("return-early") && last)
        exit(0); /* which leaves the job */
    if (is("sizes-differ"))
        hiroba_alloc(100 + (size_t)node);
    if (is("barrier-or-alloc")) {
        if (last)
            hiroba_alloc(100);
        else
            hiroba_barrier();
    }
    while (is("two-threads") && !last)
        pause(); /* hiroba_finalize would disagree with the first thread's barrier, and be named */
    if (is("two-threads")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, barrier, NULL) == 0, "no thread");
        hiroba_barrier();
        CHECK(pthread_join(thread, NULL) == 0, "no end of a thread");
    }
    if (strncmp(how, "run-", 4) == 0)
        hiroba_run(in_run, NULL);
    if (is("atomic-unaligned") && last)
        hiroba_fetch_add((uint64_t *)(uintptr_t)((uintptr_t)board + 4), 1);
    if (is("atomic-private") && last) {
        static uint64_t word;
        hiroba_store(&word, 1);
    }
    if (is("after-finalize")) {
        hiroba_finalize();
        if (last)
            hiroba_barrier();
        exit(0);
    }
}

int main(int argc, char **argv)
{
    how = argc > 1 ? argv[1] : "";
    if (is("before-init"))
        hiroba_lock(1);
    join(&argc, &argv);
    node = hiroba_node();
    nodes = hiroba_nodes();
    last = node == nodes - 1;
    void **board = shared(4096);
    locks();
    blocks(board);
    collectives(board);
    hiroba_barrier();
    hiroba_barrier();
    hiroba_finalize();
    return 3; /* no error was found */
}
