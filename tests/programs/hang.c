/*
 * Node 1 hangs: after "hangs" no thread of it completes a system call, including the runtime's own threads.
 * One of its threads goes on computing. Ends with status 77 where the kernel does not support this
 * (seccomp(2)).
 */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile unsigned long spins;

/* Makes every call except those of this thread's last output wait for a permission that is never given. */
static void stop_all_calls(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    };
    struct sock_fprog program = { .len = sizeof rules / sizeof *rules, .filter = rules };
    unsigned flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
    flags |= SECCOMP_FILTER_FLAG_NEW_LISTENER;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) < 0) {
        fprintf(stderr, "cannot stop system calls: %s\n", strerror(errno));
        _exit(77);
    }
}

/* Waits until the runtime's own thread has started: on a busy machine a barrier may end before that. */
static void await_service_thread(void)
{
    for (;;) {
        DIR *tasks = opendir("/proc/self/task");
        struct dirent *task;
        while (tasks != NULL && (task = readdir(tasks)) != NULL) {
            char path[300], name[32] = "";
            snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
            FILE *file = fopen(path, "r");
            if (file == NULL)
                continue;
            int is_named = fgets(name, sizeof name, file) != NULL;
            fclose(file);
            if (is_named && strcmp(name, "hiroba-service\n") == 0) {
                closedir(tasks);
                return;
            }
        }
        if (tasks != NULL)
            closedir(tasks);
        usleep(1000);
    }
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    await_service_thread();
    hiroba_barrier();
    if (hiroba_node() == 1) {
        stop_all_calls();
        if (write(STDOUT_FILENO, "hangs\n", 6) != 6)
            return 1;
        for (;;)
            spins++;
    }
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
