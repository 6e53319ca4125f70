/*
 * Proves: system calls and streams work on shared memory of which any page is absent on this node, with the
 * same results as on private memory: nothing is lost or truncated, nothing else is changed, and memory that
 * is not allocated gives EFAULT.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 5, BYTES = PAGES * PAGE, OFFSET = 104, SIZE = 4 * PAGE + 1700 };

static const unsigned absences[] = {0x01, 0x04, 0x10, 0x1f, 0x0a};
enum { ABSENCES = sizeof absences / sizeof absences[0] };

static unsigned char *all, *mine; /* shared: BYTES for each node */
static char *buffers;             /* shared: PAGE for each node */
static unsigned char expected[BYTES], source[BYTES], sink[BYTES];
static char file_name[64];
static int file;
static unsigned round_number;

static unsigned char value(size_t i, unsigned round, int late)
{
    return (unsigned char)(i * 7 + i / 256 + round * 13 + (late ? 101 : 0));
}

/* Collective: fills this node's memory, of which the next node then writes the pages of `absent`. */
static void prepare(unsigned absent)
{
    round_number++;
    for (size_t i = 0; i < BYTES; i++) {
        mine[i] = value(i, round_number, 0);
        expected[i] = value(i, round_number, (absent >> (i / PAGE)) & 1);
        source[i] = (unsigned char)~expected[i];
    }
    memset(sink, 0, sizeof sink);
    hiroba_barrier();
    unsigned char *other = all + (size_t)((hiroba_node() + 1) % hiroba_nodes()) * BYTES;
    for (size_t i = 0; i < BYTES; i++)
        if ((absent >> (i / PAGE)) & 1)
            other[i] = value(i, round_number, 1);
    hiroba_barrier();
}

#define FAILED(what) "%s: %s (round %u)", what, strerror(errno), round_number

/* All of this node's memory is unchanged, except for `size` bytes at `offset`, which came from the source. */
static void verify_came(const char *what, size_t offset, size_t size)
{
    memcpy(expected + offset, source + offset, size);
    for (size_t i = 0; i < BYTES; i++)
        CHECK(mine[i] == expected[i], "%s: byte %lu is %d, not %d (round %u)", what, (unsigned long)i,
              mine[i], expected[i], round_number);
}

static void verify_went(const char *what, size_t offset, size_t size)
{
    for (size_t i = 0; i < size; i++)
        CHECK(sink[offset + i] == expected[offset + i], "%s: byte %lu is %d, not %d (round %u)", what,
              (unsigned long)(offset + i), sink[offset + i], expected[offset + i], round_number);
}

static void file_holds_source(void)
{
    CHECK(ftruncate(file, 0) == 0, FAILED("ftruncate"));
    CHECK(pwrite(file, source, BYTES, 0) == BYTES, FAILED("pwrite"));
    CHECK(lseek(file, OFFSET, SEEK_SET) == OFFSET, FAILED("lseek"));
}

static void file_is_empty(void)
{
    CHECK(ftruncate(file, 0) == 0, FAILED("ftruncate"));
    CHECK(lseek(file, OFFSET, SEEK_SET) == OFFSET, FAILED("lseek"));
}

static void file_into_sink(void)
{
    CHECK(pread(file, sink + OFFSET, SIZE, OFFSET) == SIZE, FAILED("pread"));
}

static void split(struct iovec *vector, unsigned char *memory)
{
    vector[0] = (struct iovec){memory + OFFSET, 1000};
    vector[1] = (struct iovec){memory + OFFSET + 1000, 0};
    vector[2] = (struct iovec){memory + OFFSET + 1000, 2 * PAGE};
    vector[3] = (struct iovec){memory + OFFSET + 1000 + 2 * PAGE, SIZE - 1000 - 2 * PAGE};
}

/* --- Files ------------------------------------------------------------------------------------------ */

static void files_in(void)
{
    struct iovec vector[4];
    split(vector, mine);
    for (int k = 0; k < ABSENCES; k++) {
        prepare(absences[k]);
        file_holds_source();
        CHECK(read(file, mine + OFFSET, SIZE) == SIZE, FAILED("read"));
        verify_came("read", OFFSET, SIZE);
        prepare(absences[k]);
        file_holds_source();
        CHECK(pread(file, mine + OFFSET, SIZE, OFFSET) == SIZE, FAILED("pread"));
        verify_came("pread", OFFSET, SIZE);
        prepare(absences[k]);
        file_holds_source();
        CHECK(readv(file, vector, 4) == SIZE, FAILED("readv"));
        verify_came("readv", OFFSET, SIZE);
        prepare(absences[k]);
        file_holds_source();
        CHECK(preadv(file, vector, 4, OFFSET) == SIZE, FAILED("preadv"));
        verify_came("preadv", OFFSET, SIZE);
        /* The end of the file comes before the end of the buffer. */
        prepare(absences[k]);
        file_holds_source();
        CHECK(ftruncate(file, OFFSET + 5000) == 0, FAILED("ftruncate"));
        CHECK(read(file, mine + OFFSET, SIZE) == 5000, FAILED("read up to the end"));
        verify_came("read up to the end", OFFSET, 5000);
        CHECK(read(file, mine + OFFSET, SIZE) == 0, FAILED("read at the end"));
    }
}

static void files_out(void)
{
    struct iovec vector[4];
    split(vector, mine);
    for (int k = 0; k < ABSENCES; k++) {
        prepare(absences[k]);
        file_is_empty();
        CHECK(write(file, mine + OFFSET, SIZE) == SIZE, FAILED("write"));
        file_into_sink();
        verify_went("write", OFFSET, SIZE);
        prepare(absences[k]);
        file_is_empty();
        CHECK(pwrite(file, mine + OFFSET, SIZE, OFFSET) == SIZE, FAILED("pwrite"));
        file_into_sink();
        verify_went("pwrite", OFFSET, SIZE);
        prepare(absences[k]);
        file_is_empty();
        CHECK(writev(file, vector, 4) == SIZE, FAILED("writev"));
        file_into_sink();
        verify_went("writev", OFFSET, SIZE);
        prepare(absences[k]);
        file_is_empty();
        CHECK(pwritev(file, vector, 4, OFFSET) == SIZE, FAILED("pwritev"));
        file_into_sink();
        verify_went("pwritev", OFFSET, SIZE);
    }
}

static void streams(void)
{
    for (int k = 0; k < ABSENCES; k++) {
        prepare(absences[k]);
        file_is_empty();
        FILE *stream = fopen(file_name, "r+");
        CHECK(stream != NULL, FAILED("fopen"));
        CHECK(fseek(stream, OFFSET, SEEK_SET) == 0, FAILED("fseek"));
        CHECK(fwrite(mine + OFFSET, 4, SIZE / 4, stream) == SIZE / 4, FAILED("fwrite"));
        CHECK(fflush(stream) == 0, FAILED("fflush"));
        file_into_sink();
        verify_went("fwrite", OFFSET, SIZE / 4 * 4);
        fclose(stream);

        prepare(absences[k]);
        file_holds_source();
        stream = fopen(file_name, "r");
        CHECK(stream != NULL, FAILED("fopen"));
        CHECK(setvbuf(stream, buffers + (size_t)hiroba_node() * PAGE, _IOFBF, PAGE) == 0, FAILED("setvbuf"));
        CHECK(fseek(stream, OFFSET, SEEK_SET) == 0, FAILED("fseek"));
        CHECK(fread(mine + OFFSET, 4, SIZE / 4, stream) == SIZE / 4, FAILED("fread"));
        fclose(stream);
        verify_came("fread", OFFSET, SIZE / 4 * 4);
    }
}

/* The file starts with `length` letters and a newline. */
static void lines(void)
{
    enum { LENGTH = 3 * PAGE };
    for (int k = 0; k < ABSENCES; k++) {
        prepare(absences[k]);
        memset(source, 'x', LENGTH);
        source[100] = 0; /* a line may contain a zero byte */
        source[LENGTH] = '\n';
        file_holds_source();
        memmove(source + OFFSET, source, LENGTH + 1);
        source[OFFSET + LENGTH + 1] = 0;
        FILE *stream = fopen(file_name, "r");
        CHECK(fgets((char *)mine + OFFSET, BYTES - OFFSET, stream) == (char *)mine + OFFSET, FAILED("fgets"));
        verify_came("fgets", OFFSET, LENGTH + 2);
        fclose(stream);

        prepare(0);
        memset(mine + OFFSET, 'y', LENGTH);
        mine[OFFSET + LENGTH] = 0;
        hiroba_barrier();
        char *text = (char *)all + (size_t)((hiroba_node() + 1) % hiroba_nodes()) * BYTES + OFFSET;
        file_is_empty();
        stream = fopen(file_name, "w");
        CHECK(fputs(text, stream) >= 0, FAILED("fputs"));
        CHECK(fprintf(stream, "%d %s %g\n", 17, text, 0.25) == LENGTH + 9, FAILED("fprintf"));
        CHECK(fprintf(stream, text + LENGTH - 10) == 10, FAILED("fprintf of a shared format"));
        CHECK(fflush(stream) == 0, FAILED("fflush"));
        CHECK(dprintf(fileno(stream), "%s%c%d%d%d%d%d%d", text, 'z', 1, 2, 3, 4, 5, 6) == LENGTH + 7,
              FAILED("dprintf"));
        fclose(stream);
        CHECK(pread(file, sink, 16, LENGTH) == 16, FAILED("pread"));
        CHECK(memcmp(sink, "17 yyyyyyyyyyyyy", 16) == 0, "fprintf wrote %.16s", (char *)sink);
        CHECK(pread(file, sink, 16, 2 * LENGTH + 3) == 16, FAILED("pread"));
        CHECK(memcmp(sink, " 0.25\nyyyyyyyyyy", 16) == 0, "fprintf wrote %.16s", (char *)sink);
        struct stat status;
        CHECK(fstat(file, &status) == 0 && status.st_size == 3 * LENGTH + 26, "the file has %ld bytes",
              (long)status.st_size);
        CHECK(pread(file, sink, 7, 3 * LENGTH + 19) == 7 && memcmp(sink, "z123456", 7) == 0,
              "dprintf wrote %.7s", (char *)sink);
        hiroba_barrier();
    }
}

/* O_DIRECT needs aligned memory; shared memory is aligned if its offset is. */
static void direct(void)
{
    int fd = open(file_name, O_RDWR | O_DIRECT);
    if (fd < 0 && errno != EINVAL)
        CHECK(0, FAILED("open with O_DIRECT"));
    for (int k = 0; k < ABSENCES; k++) {
        prepare(absences[k]);
        file_is_empty();
        if (fd >= 0) {
            CHECK(pwrite(fd, mine, BYTES, 0) == BYTES, FAILED("pwrite with O_DIRECT"));
            CHECK(pread(file, sink, BYTES, 0) == BYTES, FAILED("pread"));
            verify_went("pwrite with O_DIRECT", 0, BYTES);
        }
        prepare(absences[k]);
        file_holds_source();
        if (fd >= 0) {
            CHECK(pread(fd, mine, BYTES, 0) == BYTES, FAILED("pread with O_DIRECT"));
            verify_came("pread with O_DIRECT", 0, BYTES);
        }
    }
    if (fd >= 0)
        close(fd);
}

/* --- Sockets and pipes ------------------------------------------------------------------------------ */

static void send_all(int fd, const unsigned char *bytes, size_t size)
{
    CHECK(send(fd, bytes, size, 0) == (ssize_t)size, FAILED("send"));
}

static void sockets(int kind)
{
    int fds[2];
    CHECK(socketpair(AF_UNIX, kind, 0, fds) == 0, FAILED("socketpair"));
    struct iovec vector[4], private_vector = {sink + OFFSET, SIZE};
    split(vector, mine);
    struct msghdr message = {0}, private_message = {0};
    message.msg_iov = vector;
    message.msg_iovlen = 4;
    private_message.msg_iov = &private_vector;
    private_message.msg_iovlen = 1;
    for (int k = 0; k < ABSENCES; k++) {
        prepare(absences[k]);
        send_all(fds[0], source + OFFSET, SIZE);
        CHECK(recv(fds[1], mine + OFFSET, SIZE, 0) == SIZE, FAILED("recv"));
        verify_came("recv", OFFSET, SIZE);
        prepare(absences[k]);
        send_all(fds[0], source + OFFSET, SIZE);
        CHECK(recvfrom(fds[1], mine + OFFSET, SIZE, 0, NULL, NULL) == SIZE, FAILED("recvfrom"));
        verify_came("recvfrom", OFFSET, SIZE);
        prepare(absences[k]);
        send_all(fds[0], source + OFFSET, SIZE);
        CHECK(read(fds[1], mine + OFFSET, SIZE) == SIZE, FAILED("read of a socket"));
        verify_came("read of a socket", OFFSET, SIZE);
        prepare(absences[k]);
        send_all(fds[0], source + OFFSET, SIZE);
        CHECK(recvmsg(fds[1], &message, 0) == SIZE, FAILED("recvmsg"));
        CHECK((message.msg_flags & MSG_TRUNC) == 0, "recvmsg cut a message short");
        verify_came("recvmsg", OFFSET, SIZE);

        prepare(absences[k]);
        CHECK(send(fds[0], mine + OFFSET, SIZE, 0) == SIZE, FAILED("send"));
        CHECK(recv(fds[1], sink + OFFSET, SIZE, 0) == SIZE, FAILED("recv"));
        verify_went("send", OFFSET, SIZE);
        prepare(absences[k]);
        CHECK(write(fds[0], mine + OFFSET, SIZE) == SIZE, FAILED("write to a socket"));
        CHECK(recv(fds[1], sink + OFFSET, SIZE, 0) == SIZE, FAILED("recv"));
        verify_went("write to a socket", OFFSET, SIZE);
        prepare(absences[k]);
        CHECK(sendmsg(fds[0], &message, 0) == SIZE, FAILED("sendmsg"));
        CHECK(recvmsg(fds[1], &private_message, 0) == SIZE, FAILED("recvmsg"));
        verify_went("sendmsg", OFFSET, SIZE);
    }
    if (kind == SOCK_DGRAM) {
        /* A datagram that is longer than the buffer returns its true length. */
        prepare(0x1f);
        send_all(fds[0], source + OFFSET, SIZE);
        CHECK(recv(fds[1], mine + OFFSET, 5000, MSG_TRUNC) == SIZE, FAILED("recv with MSG_TRUNC"));
        verify_came("recv with MSG_TRUNC", OFFSET, 5000);
    }
    close(fds[0]);
    close(fds[1]);
}

static void many_messages(void)
{
    enum { MESSAGES = 3, LENGTH = 5000 };
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds) == 0, FAILED("socketpair"));
    for (int k = 0; k < ABSENCES; k++) {
        prepare(absences[k]);
        struct mmsghdr messages[MESSAGES];
        struct iovec vectors[MESSAGES];
        memset(messages, 0, sizeof messages);
        for (int m = 0; m < MESSAGES; m++) {
            vectors[m] = (struct iovec){mine + OFFSET + m * LENGTH, LENGTH};
            messages[m].msg_hdr.msg_iov = &vectors[m];
            messages[m].msg_hdr.msg_iovlen = 1;
        }
        CHECK(sendmmsg(fds[0], messages, MESSAGES, 0) == MESSAGES, FAILED("sendmmsg"));
        for (int m = 0; m < MESSAGES; m++) {
            CHECK(messages[m].msg_len == LENGTH, "sendmmsg sent %u bytes", messages[m].msg_len);
            CHECK(recv(fds[1], sink + OFFSET + m * LENGTH, LENGTH, 0) == LENGTH, FAILED("recv"));
        }
        verify_went("sendmmsg", OFFSET, MESSAGES * LENGTH);
        prepare(absences[k]);
        for (int m = 0; m < MESSAGES; m++)
            send_all(fds[0], source + OFFSET + m * LENGTH, LENGTH);
        CHECK(recvmmsg(fds[1], messages, MESSAGES, MSG_WAITFORONE, NULL) == MESSAGES, FAILED("recvmmsg"));
        for (int m = 0; m < MESSAGES; m++)
            CHECK(messages[m].msg_len == LENGTH, "recvmmsg received %u bytes", messages[m].msg_len);
        verify_came("recvmmsg", OFFSET, MESSAGES * LENGTH);
    }
    close(fds[0]);
    close(fds[1]);
}

static void pipes(void)
{
    int fds[2];
    CHECK(pipe(fds) == 0, FAILED("pipe"));
    for (int k = 0; k < ABSENCES; k++) {
        prepare(absences[k]);
        CHECK(write(fds[1], mine + OFFSET, SIZE) == SIZE, FAILED("write to a pipe"));
        CHECK(read(fds[0], sink + OFFSET, SIZE) == SIZE, FAILED("read of a pipe"));
        verify_went("write to a pipe", OFFSET, SIZE);
        prepare(absences[k]);
        CHECK(write(fds[1], source + OFFSET, SIZE) == SIZE, FAILED("write to a pipe"));
        CHECK(read(fds[0], mine + OFFSET, SIZE) == SIZE, FAILED("read of a pipe"));
        verify_came("read of a pipe", OFFSET, SIZE);
    }
    close(fds[0]);
    close(fds[1]);
}

/* --- Small arguments -------------------------------------------------------------------------------- */

/* An address that crosses from one absent page to the next. */
static void *crossing(size_t back)
{
    prepare(0x1f);
    return mine + 2 * PAGE - back;
}

static void structures(void)
{
    struct stat status, *shared_status = crossing(8);
    CHECK(stat(file_name, &status) == 0 && stat(file_name, shared_status) == 0, FAILED("stat"));
    CHECK(shared_status->st_ino == status.st_ino, "stat gave another file");
    shared_status = crossing(8);
    CHECK(fstat(file, shared_status) == 0 && shared_status->st_ino == status.st_ino, FAILED("fstat"));
    struct statfs *system = crossing(16);
    CHECK(fstatfs(file, system) == 0 && system->f_bsize > 0, FAILED("fstatfs"));

    char *path = crossing(5);
    strcpy(path, file_name);
    hiroba_barrier();
    path = (char *)all + (size_t)((hiroba_node() + 1) % hiroba_nodes()) * BYTES + 2 * PAGE - 5;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0, FAILED("open"));
    close(fd);
    CHECK(access(path, R_OK) == 0, FAILED("access"));
    FILE *stream = fopen(path, "r");
    CHECK(stream != NULL, FAILED("fopen"));
    fclose(stream);
    hiroba_barrier();

    char *directory = crossing(3), private_directory[4096];
    CHECK(getcwd(directory, 2 * PAGE) == directory && getcwd(private_directory, sizeof private_directory),
          FAILED("getcwd"));
    CHECK(strcmp(directory, private_directory) == 0, "getcwd gave %s", directory);
    char *target = crossing(3);
    ssize_t length = readlink("/proc/self/exe", target, PAGE);
    CHECK(length > 0 && (size_t)length < PAGE && target[0] == '/', FAILED("readlink"));
    unsigned char *random = crossing(PAGE);
    CHECK(getrandom(random, 2 * PAGE, 0) == 2 * PAGE, FAILED("getrandom"));
    CHECK(getentropy(crossing(100), 200) == 0, FAILED("getentropy"));
    struct utsname *names = crossing(70);
    CHECK(uname(names) == 0 && strcmp(names->sysname, "Linux") == 0, FAILED("uname"));
    struct rusage *usage = crossing(16);
    CHECK(getrusage(RUSAGE_SELF, usage) == 0 && usage->ru_maxrss > 0, FAILED("getrusage"));
    struct timespec *now = crossing(8);
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, now) == 0 && now->tv_nsec < 1000000000, FAILED("clock_gettime"));
    int *count = crossing(2);
    CHECK(ioctl(file, FIONREAD, count) == 0 && *count >= 0, FAILED("ioctl"));
    struct flock *area = crossing(8);
    memset(area, 0, sizeof *area);
    area->l_type = F_WRLCK;
    hiroba_barrier();
    CHECK(fcntl(file, F_SETLK, area) == 0, FAILED("fcntl"));
    struct timespec *pause = crossing(8);
    pause->tv_sec = 0;
    pause->tv_nsec = 1000;
    CHECK(nanosleep(pause, NULL) == 0, FAILED("nanosleep"));
    errno = 0;
    CHECK(stat("/does/not/exist", crossing(8)) == -1 && errno == ENOENT, FAILED("stat of nothing"));
    for (size_t i = 0; i < BYTES; i++)
        CHECK(mine[i] == expected[i], "a call that failed changed byte %lu", (unsigned long)i);
}

static void waiting(void)
{
    int *fds = crossing(4);
    CHECK(pipe(fds) == 0 && write(fds[1], "x", 1) == 1, FAILED("pipe"));
    int reader = fds[0], writer = fds[1];
    struct pollfd *polled = crossing(12);
    polled[0] = (struct pollfd){.fd = reader, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = writer, .events = POLLIN};
    CHECK(poll(polled, 2, 1000) == 1 && polled[0].revents == POLLIN && polled[1].revents == 0, FAILED("poll"));
    fd_set *set = crossing(4);
    FD_ZERO(set);
    FD_SET(reader, set);
    struct timeval *timeout = (struct timeval *)(mine + PAGE - 8);
    timeout->tv_sec = 1;
    timeout->tv_usec = 0;
    CHECK(select(reader + 1, set, NULL, NULL, timeout) == 1 && FD_ISSET(reader, set), FAILED("select"));
    int queue = epoll_create1(0);
    struct epoll_event *events = crossing(6);
    events[0].events = EPOLLIN;
    events[0].data.u64 = 77;
    CHECK(epoll_ctl(queue, EPOLL_CTL_ADD, reader, events) == 0, FAILED("epoll_ctl"));
    events = crossing(6);
    CHECK(epoll_wait(queue, events, 4, 1000) == 1 && events[0].data.u64 == 77, FAILED("epoll_wait"));
    close(queue);
    close(reader);
    close(writer);

    pid_t child = fork();
    if (child == 0)
        _exit(7);
    int *status = crossing(2);
    CHECK(waitpid(child, status, 0) == child && WIFEXITED(*status) && WEXITSTATUS(*status) == 7,
          FAILED("waitpid"));
}

static void addresses(void)
{
    int server = socket(AF_INET, SOCK_DGRAM, 0), client = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in *address = crossing(6);
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(server, (struct sockaddr *)address, sizeof *address) == 0, FAILED("bind"));
    address = crossing(6);
    socklen_t *length = (socklen_t *)(mine + 4 * PAGE - 4);
    *length = sizeof *address;
    CHECK(getsockname(server, (struct sockaddr *)address, length) == 0, FAILED("getsockname"));
    CHECK(*length == sizeof *address && address->sin_port != 0, "getsockname gave no port");
    struct sockaddr_in kept = *address;
    address = crossing(6);
    *address = kept;
    CHECK(sendto(client, "hello", 5, 0, (struct sockaddr *)address, sizeof kept) == 5, FAILED("sendto"));
    address = crossing(6);
    *length = sizeof *address;
    CHECK(recvfrom(server, sink, 10, 0, (struct sockaddr *)address, length) == 5, FAILED("recvfrom"));
    CHECK(address->sin_family == AF_INET && *length == sizeof *address, "recvfrom gave no address");
    int *size = crossing(2);
    *length = sizeof *size;
    CHECK(getsockopt(server, SOL_SOCKET, SO_RCVBUF, size, length) == 0 && *size > 0, FAILED("getsockopt"));
    close(server);
    close(client);
}

/* --- What is not allocated -------------------------------------------------------------------------- */

static void unallocated(void)
{
    hiroba_options small = {.page_bytes = PAGE}; /* it ends where its pages end */
    unsigned char *end = hiroba_alloc_with(2 * PAGE, &small), *beyond = end + 2 * PAGE;
    CHECK(end != NULL, "hiroba_alloc_with failed: %s", hiroba_error_string());
    errno = 0;
    CHECK(write(file, beyond, 10) == -1 && errno == EFAULT, FAILED("write of unallocated memory"));
    file_holds_source();
    errno = 0;
    CHECK(read(file, beyond, 10) == -1 && errno == EFAULT, FAILED("read into unallocated memory"));
    CHECK(stat(file_name, (struct stat *)beyond) == -1 && errno == EFAULT, FAILED("stat into unallocated memory"));
    CHECK(open((char *)beyond, O_RDONLY) == -1 && errno == EFAULT, FAILED("open of an unallocated name"));
    /* A buffer that is longer than its memory works as long as the data fit. */
    CHECK(ftruncate(file, OFFSET + 100) == 0, FAILED("ftruncate"));
    CHECK(read(file, end + PAGE, 1 << 20) == 100, FAILED("read of a short file"));
    CHECK(memcmp(end + PAGE, source + OFFSET, 100) == 0, "read something else");
    hiroba_barrier();
}

/* Larger than any buffer that is kept. */
static void large(void)
{
    enum { LARGE = 40 << 20 };
    unsigned char *memory = shared(LARGE);
    int node = hiroba_node();
    if (node == 0)
        for (size_t i = 0; i < LARGE; i += 512)
            memory[i] = (unsigned char)(i / 512 + 1);
    hiroba_barrier();
    file_is_empty();
    CHECK(pwrite(file, memory, LARGE, 0) == LARGE, FAILED("pwrite of a large buffer"));
    hiroba_barrier();
    if (node == hiroba_nodes() - 1) {
        memset(memory, 0, LARGE);
        CHECK(lseek(file, 0, SEEK_SET) == 0 && read(file, memory, LARGE) == LARGE, FAILED("a large read"));
    }
    hiroba_barrier();
    for (size_t i = 0; i < LARGE; i += 512)
        CHECK(memory[i] == (unsigned char)(i / 512 + 1), "byte %lu of the large file is %d", (unsigned long)i,
              memory[i]);
    hiroba_barrier();
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    all = shared((size_t)BYTES * (size_t)hiroba_nodes());
    mine = all + (size_t)hiroba_node() * BYTES;
    buffers = shared((size_t)PAGE * (size_t)hiroba_nodes());
    const char *directory = getenv("TMPDIR");
    snprintf(file_name, sizeof file_name, "%.40s/hiroba-XXXXXX", directory ? directory : "/tmp");
    file = mkstemp(file_name);
    CHECK(file >= 0, FAILED("mkstemp"));

    files_in();
    files_out();
    streams();
    lines();
    direct();
    sockets(SOCK_STREAM);
    sockets(SOCK_DGRAM);
    sockets(SOCK_SEQPACKET);
    many_messages();
    pipes();
    structures();
    waiting();
    addresses();
    unallocated();
    large();
    unlink(file_name);
    hiroba_finalize();
    return 0;
}
