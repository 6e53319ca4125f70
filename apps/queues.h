/*
 * Work that cannot be given out beforehand: every thread has a queue of things of its own, which it takes under the queue's
 * lock, some at first and one by one in the end. When they are gone it takes the last half of what another has left, which
 * that one would come to last. So threads are done at the same time, though some things take longer, or some processors.
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

/* Gives this thread its things, before a barrier or under the queue's lock. */
static inline void fill_queue(struct queues queues, struct span things)
{
    *(struct queue *)part_of(queues.all, thread_number()) = (struct queue){things.first, things.end};
}

static inline unsigned lock_of(struct queues queues, size_t owner)
{
    return queues.first_lock + (unsigned)(owner % (LOCKS - queues.first_lock));
}

enum { TURNS = 16 }; /* of a queue of one's own so large a part is taken at once: seldom a lock, and much left for others */

/* Takes things out of a queue: the first ones of one's own, or the last half of another's; none if there are none. */
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

/* Takes things that nobody else has taken or ever will. False when no queue has any left. */
static inline bool take(struct queues queues, struct span *things)
{
    const size_t own = thread_number();
    for (size_t turn = 0; turn < queues.count; turn++) {
        *things = take_from(queues, (own + turn) % queues.count);
        if (things->first == things->end)
            continue;
        if (turn > 0) { /* another's: what it does not begin with is for its own queue, which is empty and nobody else fills */
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
