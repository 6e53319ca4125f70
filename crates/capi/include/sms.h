/* sms.h - the interface of SMS (Midorikawa, Ito, Iizuka: sms-0.4.1) on Hiroba's runtime.
 *
 * Every node runs main, and all nodes call sms_startup, sms_alloc, sms_barrier and sms_shutdown alike.
 * hiroba.h describes what the calls promise; locks and condition variables are named by numbers.
 *
 *   int   sms_startup(&argc, &argv);       also without arguments; 0, or a negative errno value and a message
 *                                          on stderr
 *   void  sms_shutdown(void);
 *   void *sms_alloc(size_t bytes);         also with a home node as second argument; fails as hiroba_alloc
 *   void  sms_barrier(void);               also with a number, which is ignored: there is one barrier
 *   void  sms_lock(unsigned id);           void sms_unlock(unsigned id);
 *   void  sms_cond_wait(unsigned cond, unsigned lock);
 *   void  sms_cond_signal(unsigned cond);  void sms_cond_broadcast(unsigned cond);
 */
#ifndef SMS_H
#define SMS_H

#include "hiroba.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Calls hiroba_init, and prints the reason on stderr if it fails. */
int hiroba_init_or_say(const char *call);
#ifdef __cplusplus
}

static inline int sms_startup(int * = 0, char *** = 0) { return hiroba_init_or_say("sms_startup"); }
static inline void sms_barrier(int = 0) { hiroba_barrier(); }
static inline void *sms_alloc(size_t bytes) { return hiroba_alloc(bytes); }
static inline void *sms_alloc(size_t bytes, int home) { return hiroba_alloc_at(bytes, home); }
#else
static inline int sms_startup_with_(void **arguments)
{
    (void)arguments; /* passed for future use */
    return hiroba_init_or_say("sms_startup");
}
#define sms_startup(...) sms_startup_with_((void *[]){NULL, __VA_ARGS__})

static inline void sms_barrier_with_(const int *number)
{
    (void)number;
    hiroba_barrier();
}
#define sms_barrier(...) sms_barrier_with_((const int[]){0, __VA_ARGS__})

static inline void *sms_alloc_on_(size_t bytes, int home)
{
    return home < 0 ? hiroba_alloc(bytes) : hiroba_alloc_at(bytes, home);
}
#define SMS_ALLOC_(bytes, home, ...) sms_alloc_on_((bytes), (home))
#define sms_alloc(...) SMS_ALLOC_(__VA_ARGS__, -1, 0)
#endif

static inline void sms_shutdown(void) { hiroba_finalize(); }
static inline void sms_lock(unsigned id) { hiroba_lock(id); }
static inline void sms_unlock(unsigned id) { hiroba_unlock(id); }
static inline void sms_cond_wait(unsigned cond, unsigned lock) { hiroba_cond_wait(cond, lock); }
static inline void sms_cond_signal(unsigned cond) { hiroba_cond_signal(cond); }
static inline void sms_cond_broadcast(unsigned cond) { hiroba_cond_broadcast(cond); }

#endif /* SMS_H */
