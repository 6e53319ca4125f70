/*
 * Work that cannot be given out beforehand: every thread has a queue of things of its own, which it takes one by one under
 * the queue's lock. When they are gone it takes the last ones of others' queues, which those would come to last. So threads
 * are done at the same time, though some things take longer, or some processors.
 */
#ifndef HIROBA_APPS_QUEUES_H
#define HIROBA_APPS_QUEUES_H

#include "common.h"

/* The things that nobody has taken yet of those that a thread begins with: next <= i < end. */
struct queue {
    size_t next, end;
};

/* The queues of all threads. */
struct queues {
    struct parts all;
    size_t count;
    unsigned first_lock; /* that one and all behind are theirs; queues share them if need be */
};

/* Empty queues for so many threads. Collective; a NULL `all.start` if there is no memory. */
static inline struct queues shared_queues(size_t count, unsigned first_lock)
{
    return (struct queues){shared_parts(count, sizeof(struct queue)), count, first_lock};
}

/* Gives this thread its things; others see them behind the next barrier. */
static inline void fill_queue(struct queues queues, struct span things)
{
    *(struct queue *)part_of(queues.all, thread_number()) = (struct queue){things.first, things.end};
}

/* Takes a thing that nobody else has taken or ever will. `*turn`, 0 at first, is how many queues this thread has found
 * empty: nothing is ever put into one again. False when there is nothing left. */
static inline bool take(struct queues queues, size_t *turn, size_t *thing)
{
    for (; *turn < queues.count; ++*turn) {
        size_t owner = (thread_number() + *turn) % queues.count;
        unsigned queue_lock = queues.first_lock + (unsigned)(owner % (LOCKS - queues.first_lock));
        struct queue *queue = part_of(queues.all, owner);
        lock(queue_lock);
        bool some_left = queue->next < queue->end;
        if (some_left)
            *thing = *turn == 0 ? queue->next++ : --queue->end;
        unlock(queue_lock);
        if (some_left)
            return true;
    }
    return false;
}

#endif
