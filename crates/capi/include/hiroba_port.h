/* hiroba_port.h - messages to ports in the manner of Mach between any threads of any nodes; C99 and C++.
 *
 * A port is a queue of messages. One node at a time receives from it; others send. What a node may do with
 * a port it names by a number: a name means nothing on another node, cannot be guessed into a right, and
 * is not used again. Threads of a node share its names. Rights:
 *
 *   receive     one in the job: the port is where it is. It may move to another node in a message;
 *               senders follow.
 *   send        may be copied. A name counts its user references.
 *   send once   sends one message, which needs no room in the queue. If it is given up unused, its
 *               port is told.
 *
 * When a port dies (its receive right is destroyed) its messages are destroyed with the rights in them,
 * and names of send rights to it become dead names.
 *
 * Messages of one node to one port by send rights come in the order in which they were sent, and are
 * neither lost nor doubled. A port's queue takes 16 messages, unless hiroba_port_set_queue_limit says
 * otherwise; then senders wait, and are let in in turn. A node keeps one queue more of its own for each
 * port of another node that it sends to.
 *
 * Memory model: a send releases and a receive acquires. What a thread has written to shared memory before
 * it sends a message is seen by the thread that receives it.
 *
 * Calls return 0, or a negative errno value, and then hiroba_error_string() says why and nothing has
 * happened:
 *
 *   -EPERM      outside the job; or the name denotes no such right
 *   -EBADF      the name denotes nothing on this node
 *   -EINVAL     an argument is out of its bounds
 *   -EEXIST     the name denotes another port
 *   -EOVERFLOW  more than 65,534 user references
 *   -EPIPE      the port to send to is dead
 *   -EBADMSG    the message does not describe itself rightly: types whose sizes do not add up to the inline
 *               bytes, more than 1,023 regions or rights
 *   -EMSGSIZE   more than 256 MiB of data in a message
 *   -ETIMEDOUT  the queue stayed full, or no message came, for as long as the call was to wait
 *   -EALREADY   a message-accepted notification for this name is outstanding
 *   -ENOBUFS    the first message is longer than bytes_max; it stays in the queue
 *   -EIDRM      the receive right went away while the call waited
 *   -ENOSPC     more than 1,048,576 names on this node
 *   -ENOENT     nothing is registered by that name (hiroba_port_look_up, hiroba_port_withdraw)
 *
 * Where Mach's calls went:
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

/* A node's name for rights to a port, or for a set; HIROBA_PORT_NULL is none. */
typedef uint64_t hiroba_port;
#define HIROBA_PORT_NULL ((hiroba_port)0)

/* Times to wait, in microseconds: any number, or one of these. */
#define HIROBA_PORT_FOREVER ((int64_t)-1)
#define HIROBA_PORT_NO_WAIT ((int64_t)0)

/* For bytes_max: as long as messages may be. */
#define HIROBA_PORT_ANY_SIZE ((uint64_t)-1)

/* What becomes of the caller's right when a message, or a call, takes one. */
enum {
    HIROBA_PORT_MOVE_RECEIVE = 1,   /* the receive right moves */
    HIROBA_PORT_MOVE_SEND = 2,      /* one user reference of a send right moves */
    HIROBA_PORT_COPY_SEND = 3,      /* a send right is copied */
    HIROBA_PORT_MAKE_SEND = 4,      /* a send right is made from a receive right */
    HIROBA_PORT_MOVE_SEND_ONCE = 5, /* a send-once right moves */
    HIROBA_PORT_MAKE_SEND_ONCE = 6  /* a send-once right is made from a receive right */
};

/* What kind of right came with a message. */
enum {
    HIROBA_PORT_RECEIVE = 1,
    HIROBA_PORT_SEND = 2,
    HIROBA_PORT_SEND_ONCE = 3,
    HIROBA_PORT_DEAD = 4 /* the port had died: the name is a dead name */
};

/* A right. To be sent: a name, and one of HIROBA_PORT_MOVE_RECEIVE ...; received: the name that it has
 * here, and one of HIROBA_PORT_RECEIVE ... */
typedef struct hiroba_port_right {
    hiroba_port name;
    int32_t kind;
} hiroba_port_right;

/* The type of a stretch of inline data: what it is, as the programs number it, bytes of an element, and
 * how many. */
typedef struct hiroba_port_type {
    uint16_t name;
    uint16_t element_bytes;
    uint32_t count;
} hiroba_port_type;

/* Out-of-line data. To be sent: copied, or, where `moves` is not 0, moved: `start` and `bytes` are then
 * those of a region from hiroba_port_region_allocate or hiroba_port_region_take, which is the message's
 * from the call on, also when the call fails. */
typedef struct hiroba_port_region {
    void *start;
    size_t bytes;
    int32_t moves;
} hiroba_port_region;

/* A message. What a call does not need may be left zero. */
typedef struct hiroba_port_message {
    uint32_t id;                  /* what it means, as the programs number it */
    const void *inline_data;      /* inline data */
    size_t inline_bytes;
    const hiroba_port_type *types; /* what they are, one after the other; none: bytes */
    size_t type_count;
    const hiroba_port_region *regions; /* out-of-line data */
    size_t region_count;
    const hiroba_port_right *rights; /* rights that go along */
    size_t right_count;
    hiroba_port_right reply;      /* where an answer is to go: it becomes a send or send-once right of the receiver's */
    hiroba_port port;             /* received: the receive right that it came by, of interest with sets */
    int32_t sender;               /* received: the node that sent it */
    void *received;               /* received: what hiroba_port_release gives back */
} hiroba_port_message;

/* --- Names and rights ------------------------------------------------------------------------------ */

/* Makes a port, whose receive right is called *name. */
int hiroba_port_allocate(hiroba_port *name);

/* Makes an empty set of ports. A receive from it takes messages of all ports in it, in turn. */
int hiroba_port_allocate_set(hiroba_port *name);

/* Gives up one user reference of a send right or dead name, or a send-once right; a receive right without
 * send rights, or a set: as hiroba_port_destroy. */
int hiroba_port_deallocate(hiroba_port name);

/* Gives up all rights that the name denotes. A receive right: the port dies. Ports of a set live on. */
int hiroba_port_destroy(hiroba_port name);

/* Changes the user references of a send right or dead name by `delta`. */
int hiroba_port_mod_refs(hiroba_port name, int32_t delta);

/* Adds a send right, made, copied or moved from `right`, to `name`, which must denote the same port. */
int hiroba_port_insert_right(hiroba_port name, hiroba_port_right right);

/* Takes a right out of a name: *name is what it is called then. */
int hiroba_port_extract_right(hiroba_port_right right, hiroba_port *name);

/* Puts a receive right into a set, out of the one where it is; HIROBA_PORT_NULL: into none. */
int hiroba_port_move_member(hiroba_port member, hiroba_port set);

/* Says how many messages the port's queue takes, 1 to 65,536. */
int hiroba_port_set_queue_limit(hiroba_port name, uint32_t limit);

/* Sets the make-send count of a receive right. */
int hiroba_port_set_make_send_count(hiroba_port name, uint32_t count);

/* What a name denotes; what it does not is 0. */
typedef struct hiroba_port_status {
    int32_t receive;    /* a receive right */
    int32_t set;        /* a set */
    int32_t send_once;  /* a send-once right */
    uint32_t send;      /* user references of a send right */
    uint32_t dead;      /* user references of a dead name */
    uint32_t queued;    /* of a receive right: messages in its queue */
    uint32_t limit;     /* of a receive right: how many it takes */
    uint32_t make_send; /* of a receive right: its make-send count */
} hiroba_port_status;
int hiroba_port_get_status(hiroba_port name, hiroba_port_status *status);

/* --- Notifications ----------------------------------------------------------------------------------- */

/* Of what a program can be told. */
enum {
    HIROBA_PORT_NOTIFY_DEAD_NAME = 1,     /* the port of a send or send-once right has died */
    HIROBA_PORT_NOTIFY_NO_SENDERS = 2,    /* no node has a send right, and the make-send count is `sync` at least */
    HIROBA_PORT_NOTIFY_PORT_DESTROYED = 3 /* the receive right would be destroyed: it is given back instead */
};

/* Asks for one notification about `name`, by the send-once right `notify` (moved or made); with its name
 * HIROBA_PORT_NULL calls the request off. *previous, if it is not NULL, is the send-once right of a
 * request that was called off, or HIROBA_PORT_NULL. */
int hiroba_port_request_notification(hiroba_port name, int32_t of, uint32_t sync, hiroba_port_right notify,
                                     hiroba_port *previous);

/* The ids of notifications. Inline data: of no-senders the make-send count, of dead-name and
 * message-accepted the name, 8 bytes each, little-endian; port-destroyed brings the receive right. A dead
 * name has one reference more. */
enum {
    HIROBA_PORT_ID_MESSAGE_ACCEPTED = 65,
    HIROBA_PORT_ID_PORT_DESTROYED = 69,
    HIROBA_PORT_ID_NO_SENDERS = 70,
    HIROBA_PORT_ID_SEND_ONCE = 71, /* a send-once right was given up unused */
    HIROBA_PORT_ID_DEAD_NAME = 72
};

/* --- Messages ------------------------------------------------------------------------------------------ */

/* Sends a message by the right `to` (copied, moved or made). Waits up to `timeout_us` while the queue is
 * full. */
int hiroba_port_send(hiroba_port_right to, const hiroba_port_message *message, int64_t timeout_us);

/* The same without waiting: with a full queue this one message is taken all the same, the call returns 1,
 * and a message-accepted notification comes by the send-once right `notify` when the port takes messages
 * again. */
int hiroba_port_send_notify(hiroba_port_right to, const hiroba_port_message *message, hiroba_port_right notify);

/* Takes a message of a receive right, or of a set. Waits up to `timeout_us` while there is none. A message
 * with more than `bytes_max` bytes of data stays in the queue (-ENOBUFS). What *message points to is valid
 * until hiroba_port_release. */
int hiroba_port_receive(hiroba_port from, hiroba_port_message *message, uint64_t bytes_max, int64_t timeout_us);

/* Sends `request` by the right `to`, with a send-once right to `reply_port` as its reply, and receives the
 * next message of `reply_port`: in one call that waits up to `timeout_us` in all. When it fails with
 * -ETIMEDOUT the request may have been sent; destroy the reply port then, so that a late answer is not
 * taken for that of another request. */
int hiroba_port_rpc(hiroba_port_right to, const hiroba_port_message *request, hiroba_port reply_port,
                    hiroba_port_message *reply, uint64_t bytes_max, int64_t timeout_us);

/* Gives a received message's memory back, and zeroes *message. Rights that came with it stay. */
void hiroba_port_release(hiroba_port_message *message);

/* Memory that can be moved into messages, zeroed, and given back by hiroba_port_region_free (NULL is
 * allowed). NULL and errno when there is none. It is no shared memory. */
void *hiroba_port_region_allocate(size_t bytes);
void hiroba_port_region_free(void *start);

/* Takes a region out of a received message, which keeps an empty one: it is like one from
 * hiroba_port_region_allocate now. NULL and errno (EINVAL) when there is none of that number, or it is
 * empty. */
void *hiroba_port_region_take(hiroba_port_message *message, size_t index);

/* --- Finding the first port -------------------------------------------------------------------------- */

/* Registers a send right to `port`, whose receive right the caller has, by a name of 1 to 255 bytes;
 * another one that had the name loses it. All nodes share these names. */
int hiroba_port_register(const char *name, hiroba_port port);

/* A send right to what is registered by that name. Waits up to `timeout_us` until something is
 * (-ETIMEDOUT); with HIROBA_PORT_NO_WAIT only for the answer (-ENOENT). */
int hiroba_port_look_up(const char *name, hiroba_port *port, int64_t timeout_us);

/* Forgets a name. */
int hiroba_port_withdraw(const char *name);

#ifdef __cplusplus
}
#endif

#endif /* HIROBA_PORT_H */
