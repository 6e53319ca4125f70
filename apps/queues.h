/*
 * Queues for work that cannot be assigned in advance. Each thread has a queue of its own, from which it takes
 * things under the queue's lock: many at first, and one by one at the end. When its queue is empty, it takes
 * the last half of another thread's queue, which that thread would reach last. So all threads finish at the
 * same time, though some things take longer than others, or some processors are slower.
 */
#ifndef HIROBA_APPS_QUEUES_H
#define HIROBA_APPS_QUEUES_H

#include "common.h"

/* The things of a thread's initial share that no thread has taken yet: next <= i < end. */
struct queue {
    size_t next, end;
};

/* The queues of all threads. */
struct queues {
    struct parts all;
    size_t count;
    unsigned first_lock; /* of the first queue; the others follow, or are shared if they run out */
};

/* Makes empty queues for `count` threads. Collective. `all.start` is NULL if there is no memory. */
static inline struct queues shared_queues(size_t count, unsigned first_lock)
{
    return (struct queues){shared_parts(count, sizeof(struct queue)), count, first_lock};
}

/* Gives this thread its things, before a barrier or under the queue's lock. */
static inline void fill_queue(struct queues queues, struct span things)
{
    *(struct queue *)part_of(queues.all, thread_number()) = (struct queue){things.first, things.end};
}

static inline unsigned lock_of(struct queues queues, size_t owner)
{
    return queues.first_lock + (unsigned)(owner % (LOCKS - queues.first_lock));
}

/* A thread takes this fraction (1 / TURNS) of what is left in its own queue at once: few lock operations,
 * and enough left for others. */
enum { TURNS = 16 };

/* Takes things from a queue: the first ones of the thread's own, or the last half of another's. Returns an
 * empty span if the queue is empty. */
static inline struct span take_from(struct queues queues, size_t owner)
{
    struct queue *queue = part_of(queues.all, owner);
    struct span taken;
    lock(lock_of(queues, owner));
    const size_t left = queue->end - queue->next;
    if (owner == thread_number()) {
        taken = (struct span){queue->next, queue->next + (left + TURNS - 1) / TURNS};
        queue->next = taken.end;
    } else {
        taken = (struct span){queue->end - (left + 1) / 2, queue->end};
        queue->end = taken.first;
    }
    unlock(lock_of(queues, owner));
    return taken;
}

/* Takes things that no other thread has taken or will take. Returns false when all queues are empty. */
static inline bool take(struct queues queues, struct span *things)
{
    const size_t own = thread_number();
    for (size_t turn = 0; turn < queues.count; turn++) {
        *things = take_from(queues, (own + turn) % queues.count);
        if (things->first == things->end)
            continue;
        /* Another thread's things: those that this thread does not start with go to its own queue, which
         * is empty and which no other thread fills. */
        if (turn > 0) {
            lock(lock_of(queues, own));
            fill_queue(queues, (struct span){things->first + 1, things->end});
            unlock(lock_of(queues, own));
            things->end = things->first + 1;
        }
        return true;
    }
    return false;
}

#endif
