/*
 * Proves: setlocale fails if another node cannot set the locale, and then all nodes keep the one that they
 * have. Node 1 cannot read the locale's files, because it may open no more of them.
 *
 *     cc -O2 -pthread -o lacking executable_locale_lacking.c && hiroba run --pthread -n 2 ./lacking
 */
#define _GNU_SOURCE
#include <langinfo.h>
#include <locale.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static sem_t limited, tried;

/* Runs on node 1, since main counts as node 0's first thread. System calls by number are not carried. */
static void *open_no_files(void *nothing)
{
    struct rlimit before, none;
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = (rlim_t)syscall(SYS_dup, 0);
    syscall(SYS_close, (int)none.rlim_cur);
    setrlimit(RLIMIT_NOFILE, &none);
    sem_post(&limited);
    sem_wait(&tried);
    setrlimit(RLIMIT_NOFILE, &before);
    return strcmp(nl_langinfo(CODESET), "UTF-8") ? "not UTF-8" : nothing;
}

int main(void)
{
    pthread_t thread;
    void *result = NULL;
    sem_init(&limited, 0, 0);
    sem_init(&tried, 0, 0);
    pthread_create(&thread, NULL, open_no_files, "UTF-8");
    sem_wait(&limited);
    printf("set: %s\n", setlocale(LC_ALL, "C.UTF-8") ? "yes" : "no");
    printf("here: %s\n", setlocale(LC_ALL, NULL));
    sem_post(&tried);
    pthread_join(thread, &result);
    printf("there: %s\n", strlen(result) == strlen("UTF-8") ? "UTF-8" : "not UTF-8");
    return 0;
}
