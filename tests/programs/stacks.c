/*
 * Proves: a thread whose stack is in shared memory runs, and so does a context of makecontext, though the
 * pages of the stack are absent on this node.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"

#include <pthread.h>
#include <ucontext.h>

enum { PAGE = 4096, STACK = 64 * PAGE };

static unsigned char *all;
static ucontext_t main_context, other_context;
static unsigned long result;

static unsigned char *stack_of(int node)
{
    return all + (size_t)node * STACK;
}

/* Collective: the next node writes all of this node's stack. */
static void make_absent(void)
{
    hiroba_barrier();
    unsigned char *other = stack_of((hiroba_node() + 1) % hiroba_nodes());
    for (size_t i = 0; i < STACK; i += 64)
        other[i]++;
    hiroba_barrier();
}

static unsigned long deep(unsigned depth)
{
    volatile unsigned char room[1500];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = (unsigned char)(depth + i);
    return depth == 0 ? 1 : room[depth % sizeof room] + deep(depth - 1);
}

static void *on_stack(void *argument)
{
    unsigned char here;
    unsigned char *stack = argument;
    CHECK(&here > stack && &here < stack + STACK, "the thread does not run on its stack");
    result = deep(100);
    return argument;
}

static void in_context(void)
{
    result = deep(100);
}

/* Collective. */
static void use_context(unsigned char *stack, unsigned long wanted)
{
    make_absent();
    CHECK(getcontext(&other_context) == 0, "getcontext failed");
    other_context.uc_stack.ss_sp = stack;
    other_context.uc_stack.ss_size = STACK;
    other_context.uc_link = &main_context;
    makecontext(&other_context, in_context, 0);
    result = 0;
    CHECK(swapcontext(&main_context, &other_context) == 0, "swapcontext failed");
    CHECK(result == wanted, "the context computed %lu, not %lu", result, wanted);
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    all = shared((size_t)STACK * (size_t)hiroba_nodes());
    unsigned char *stack = stack_of(hiroba_node());
    unsigned long wanted = deep(100);
    for (int round = 0; round < 5; round++) {
        make_absent();
        pthread_attr_t attributes;
        pthread_t thread;
        void *returned;
        pthread_attr_init(&attributes);
        CHECK(pthread_attr_setstack(&attributes, stack, STACK) == 0, "pthread_attr_setstack failed");
        result = 0;
        CHECK(pthread_create(&thread, &attributes, on_stack, stack) == 0, "pthread_create failed");
        CHECK(pthread_join(thread, &returned) == 0 && returned == stack, "pthread_join failed");
        CHECK(result == wanted, "the thread computed %lu, not %lu", result, wanted);
        use_context(stack, wanted);
    }
    hiroba_finalize();
    return 0;
}
