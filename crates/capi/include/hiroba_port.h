/* hiroba_port.h - messages to ports in the manner of Mach between any threads of any nodes; C99 and C++.
 *
 * A port is a queue of messages. One node at a time receives from it; others send. A node refers to its
 * rights to a port by a number, the name: it has no meaning on another node, guessing one gives no right,
 * and it is never reused. Threads of a node share its names. Rights:
 *
 *   receive     exists once in the job, and determines the node of the port. It may move to another node
 *               in a message; senders follow.
 *   send        may be copied. A name counts its user references.
 *   send once   sends one message, which needs no room in the queue. If it is given up unused, its
 *               port is notified.
 *
 * When a port dies (its receive right is destroyed) its messages are destroyed with the rights in them,
 * and names of send rights to it become dead names.
 *
 * Messages of one node to one port by send rights arrive in the order in which they were sent, and are
 * neither lost nor doubled. A port's queue takes 16 messages, unless hiroba_port_set_queue_limit changes
 * this. Senders to a full queue wait, and are served in turn. A node keeps one further queue of its own for
 * each port of another node that it sends to.
 *
 * Memory model: a send releases and a receive acquires. The thread that receives a message sees what its
 * sender had written to shared memory before the send.
 *
 * Calls return 0 or a negative errno value. On an error, hiroba_error_string() says why and the call has no
 * effect, except that a hiroba_port_rpc whose answer does not arrive has sent its request:
 *
 *   -EPERM      outside the job; or the name denotes no such right
 *   -EBADF      the name denotes nothing on this node
 *   -EINVAL     an argument is out of its bounds
 *   -EEXIST     the name denotes another port
 *   -EOVERFLOW  more than 65,534 user references
 *   -EPIPE      the port to send to is dead
 *   -EBADMSG    the message describes itself wrongly: types whose sizes do not add up to the inline
 *               bytes, more than 1,023 regions or rights
 *   -EMSGSIZE   more than 256 MiB of data in a message
 *   -ETIMEDOUT  the queue stayed full, or no message arrived, within the time limit
 *   -EALREADY   a message-accepted notification for this name is outstanding
 *   -ENOBUFS    the first message is longer than bytes_max; it stays in the queue
 *   -EIDRM      the receive right was moved or destroyed while the call waited
 *   -ENOSPC     more than 1,048,576 names on this node
 *   -ENOENT     nothing is registered under that name (hiroba_port_look_up, hiroba_port_withdraw)
 *
 * Mach's calls and their equivalents:
 *
 *   mach_port_allocate                   hiroba_port_allocate, hiroba_port_allocate_set
 *   mach_port_deallocate, _destroy       hiroba_port_deallocate, hiroba_port_destroy
 *   mach_port_mod_refs                   hiroba_port_mod_refs
 *   mach_port_type, _get_refs,
 *     _get_receive_status                hiroba_port_get_status
 *   mach_port_insert_right               hiroba_port_insert_right
 *   mach_port_extract_right              hiroba_port_extract_right
 *   mach_port_move_member                hiroba_port_move_member
 *   mach_port_set_qlimit, _set_mscount   hiroba_port_set_queue_limit, hiroba_port_set_make_send_count
 *   mach_port_request_notification       hiroba_port_request_notification
 *   mach_msg: MACH_SEND_MSG              hiroba_port_send (timeout_us: MACH_SEND_TIMEOUT)
 *             MACH_SEND_NOTIFY           hiroba_port_send_notify
 *             MACH_RCV_MSG               hiroba_port_receive (timeout_us: MACH_RCV_TIMEOUT;
 *                                        bytes_max: MACH_RCV_LARGE)
 *             both                       hiroba_port_rpc
 *   netname_check_in, _look_up,
 *     _check_out                         hiroba_port_register, hiroba_port_look_up, hiroba_port_withdraw
 *   vm_allocate, vm_deallocate           hiroba_port_region_allocate, hiroba_port_region_free
 *   vm_region                            hiroba_port_region_bytes
 *
 * Signal handlers must not call this interface.
 */
#ifndef HIROBA_PORT_H
#define HIROBA_PORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A node's name for rights to a port, or for a set; HIROBA_PORT_NULL is no name. */
typedef uint64_t hiroba_port;
#define HIROBA_PORT_NULL ((hiroba_port)0)

/* Special time limits; others are in microseconds. */
#define HIROBA_PORT_FOREVER ((int64_t)-1)
#define HIROBA_PORT_NO_WAIT ((int64_t)0)

/* A bytes_max that accepts every message. */
#define HIROBA_PORT_ANY_SIZE ((uint64_t)-1)

/* How a message, or a call, takes a right from the caller. */
enum {
    HIROBA_PORT_MOVE_RECEIVE = 1,   /* the receive right moves */
    HIROBA_PORT_MOVE_SEND = 2,      /* one user reference of a send right moves */
    HIROBA_PORT_COPY_SEND = 3,      /* a send right is copied */
    HIROBA_PORT_MAKE_SEND = 4,      /* a send right is made from a receive right */
    HIROBA_PORT_MOVE_SEND_ONCE = 5, /* a send-once right moves */
    HIROBA_PORT_MAKE_SEND_ONCE = 6  /* a send-once right is made from a receive right */
};

/* The kind of a received right. */
enum {
    HIROBA_PORT_RECEIVE = 1,
    HIROBA_PORT_SEND = 2,
    HIROBA_PORT_SEND_ONCE = 3,
    HIROBA_PORT_DEAD = 4 /* the port had died: the name is a dead name */
};

/* A right. To send it: its name, and one of HIROBA_PORT_MOVE_RECEIVE ...; received: its name on this node,
 * and one of HIROBA_PORT_RECEIVE ... */
typedef struct hiroba_port_right {
    hiroba_port name;
    int32_t kind;
} hiroba_port_right;

/* The type of a part of inline data: a number that the programs define, the bytes of an element, and the
 * number of elements. */
typedef struct hiroba_port_type {
    uint16_t name;
    uint16_t element_bytes;
    uint32_t count;
} hiroba_port_type;

/* Out-of-line data. It is copied when sent, or moved if `moves` is not 0: then `start` and `bytes` are those
 * of a region from hiroba_port_region_allocate or hiroba_port_region_take. From the call on, such a region
 * belongs to the message. If the call fails before the message is in the queue, the region belongs to the
 * caller again, unchanged and at the same address, as with Mach. After a hiroba_port_rpc that failed,
 * hiroba_port_region_bytes tells whether the region was sent with the request. */
typedef struct hiroba_port_region {
    void *start;
    size_t bytes;
    int32_t moves;
} hiroba_port_region;

/* A message. Fields that a call does not need may be zero. */
typedef struct hiroba_port_message {
    uint32_t id;                  /* the meaning, a number that the programs define */
    const void *inline_data;      /* inline data */
    size_t inline_bytes;
    const hiroba_port_type *types; /* the types of the inline data in order; none: bytes */
    size_t type_count;
    const hiroba_port_region *regions; /* out-of-line data */
    size_t region_count;
    const hiroba_port_right *rights; /* rights that are sent along */
    size_t right_count;
    hiroba_port_right reply;      /* where to send an answer; the receiver gets a send or send-once right */
    hiroba_port port;             /* received: the receive right that took it, useful with sets */
    int32_t sender;               /* received: the node that sent it */
    void *received;               /* received: memory that hiroba_port_release frees */
} hiroba_port_message;

/* --- Names and rights ------------------------------------------------------------------------------ */

/* Makes a port; *name becomes the name of its receive right. */
int hiroba_port_allocate(hiroba_port *name);

/* Makes an empty set of ports. A receive from it takes messages of all ports in it, in turn. */
int hiroba_port_allocate_set(hiroba_port *name);

/* Gives up one user reference of a send right or dead name, or a send-once right. For a receive right without
 * send rights, or a set, does the same as hiroba_port_destroy. */
int hiroba_port_deallocate(hiroba_port name);

/* Gives up all rights that the name denotes. The port of a receive right dies; the ports of a set live on. */
int hiroba_port_destroy(hiroba_port name);

/* Changes the user references of a send right or dead name by `delta`. */
int hiroba_port_mod_refs(hiroba_port name, int32_t delta);

/* Adds a send right, made, copied or moved from `right`, to `name`, which must denote the same port. */
int hiroba_port_insert_right(hiroba_port name, hiroba_port_right right);

/* Takes a right out of a name; *name becomes its new name. */
int hiroba_port_extract_right(hiroba_port_right right, hiroba_port *name);

/* Moves a receive right from its set into another; HIROBA_PORT_NULL only removes it. */
int hiroba_port_move_member(hiroba_port member, hiroba_port set);

/* Sets how many messages the port's queue takes, 1 to 65,536. */
int hiroba_port_set_queue_limit(hiroba_port name, uint32_t limit);

/* Sets the make-send count of a receive right. */
int hiroba_port_set_make_send_count(hiroba_port name, uint32_t count);

/* What a name denotes; fields that do not apply are 0. */
typedef struct hiroba_port_status {
    int32_t receive;    /* a receive right */
    int32_t set;        /* a set */
    int32_t send_once;  /* a send-once right */
    uint32_t send;      /* user references of a send right */
    uint32_t dead;      /* user references of a dead name */
    uint32_t queued;    /* of a receive right: messages in its queue */
    uint32_t limit;     /* of a receive right: the limit of its queue */
    uint32_t make_send; /* of a receive right: its make-send count */
} hiroba_port_status;
int hiroba_port_get_status(hiroba_port name, hiroba_port_status *status);

/* --- Notifications ----------------------------------------------------------------------------------- */

/* Events of which a program can be notified. */
enum {
    HIROBA_PORT_NOTIFY_DEAD_NAME = 1,     /* the port of a send or send-once right has died */
    HIROBA_PORT_NOTIFY_NO_SENDERS = 2,    /* no node has a send right, and the make-send count is >= `sync` */
    HIROBA_PORT_NOTIFY_PORT_DESTROYED = 3 /* the receive right would be destroyed; it is returned instead */
};

/* Requests one notification about `name` through the send-once right `notify` (moved or made). If its name is
 * HIROBA_PORT_NULL, cancels the request. *previous, if `previous` is not NULL, becomes the send-once right of
 * a cancelled request, or HIROBA_PORT_NULL. */
int hiroba_port_request_notification(hiroba_port name, int32_t of, uint32_t sync, hiroba_port_right notify,
                                     hiroba_port *previous);

/* The ids of notifications. Their inline data, of 8 bytes, little-endian: the make-send count for no-senders,
 * the name for dead-name and message-accepted. Port-destroyed carries the receive right. A dead-name
 * notification adds a reference to the dead name. */
enum {
    HIROBA_PORT_ID_MESSAGE_ACCEPTED = 65,
    HIROBA_PORT_ID_PORT_DESTROYED = 69,
    HIROBA_PORT_ID_NO_SENDERS = 70,
    HIROBA_PORT_ID_SEND_ONCE = 71, /* a send-once right was given up unused */
    HIROBA_PORT_ID_DEAD_NAME = 72
};

/* --- Messages ------------------------------------------------------------------------------------------ */

/* Sends a message through the right `to` (copied, moved or made). Waits up to `timeout_us` while the queue is
 * full. */
int hiroba_port_send(hiroba_port_right to, const hiroba_port_message *message, int64_t timeout_us);

/* Sends without waiting. If the queue is full, this one message is still accepted, the call returns 1, and a
 * message-accepted notification is sent through the send-once right `notify` when the port takes messages
 * again. */
int hiroba_port_send_notify(hiroba_port_right to, const hiroba_port_message *message, hiroba_port_right notify);

/* Receives a message from a receive right, or from a set. Waits up to `timeout_us` while there is none. A
 * message with more than `bytes_max` bytes of data stays in the queue (-ENOBUFS). The memory that *message
 * points to is valid until hiroba_port_release. Its regions may lie in memory that the node's peers have
 * written them to: a child made by fork() does not have it. */
int hiroba_port_receive(hiroba_port from, hiroba_port_message *message, uint64_t bytes_max, int64_t timeout_us);

/* Sends `request` through the right `to`, with a send-once right to `reply_port` as its reply, and receives
 * the next message of `reply_port`. Waits up to `timeout_us` in total. After -ETIMEDOUT the request may have
 * been sent; then destroy the reply port, so that a late answer is not mistaken for that of another request.
 */
int hiroba_port_rpc(hiroba_port_right to, const hiroba_port_message *request, hiroba_port reply_port,
                    hiroba_port_message *reply, uint64_t bytes_max, int64_t timeout_us);

/* Frees the memory of a received message, and zeroes *message. Rights that came with it remain. */
void hiroba_port_release(hiroba_port_message *message);

/* Allocates zeroed memory that can be moved into messages, and frees it (NULL is allowed). Returns NULL with
 * errno on failure. The memory is not shared. */
void *hiroba_port_region_allocate(size_t bytes);
void hiroba_port_region_free(void *start);

/* Returns the length of such a region; 0 if the caller does not own it, or not any more. */
size_t hiroba_port_region_bytes(const void *start);

/* Takes a region out of a received message, in which an empty one remains. It can be used like one from
 * hiroba_port_region_allocate. Returns NULL with errno EINVAL if the message has no such region or it is
 * empty. */
void *hiroba_port_region_take(hiroba_port_message *message, size_t index);

/* --- Finding the first port -------------------------------------------------------------------------- */

/* Registers a send right to `port`, whose receive right the caller has, under a name of 1 to 255 bytes.
 * Replaces an earlier registration of the name. All nodes share these names. */
int hiroba_port_register(const char *name, hiroba_port port);

/* Gets a send right to the port that is registered under that name. Waits up to `timeout_us` for a
 * registration (-ETIMEDOUT); with HIROBA_PORT_NO_WAIT only for the answer (-ENOENT). */
int hiroba_port_look_up(const char *name, hiroba_port *port, int64_t timeout_us);

/* Removes the registration of a name. */
int hiroba_port_withdraw(const char *name);

#ifdef __cplusplus
}
#endif

#endif /* HIROBA_PORT_H */
