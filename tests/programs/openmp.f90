! Proves: calls of Fortran's module omp_lib get their arguments as gfortran passes them: some by reference,
! an event by value.
program calls
  use omp_lib
  implicit none
  integer(omp_event_handle_kind) :: event
  integer(omp_nest_lock_kind) :: lock
  integer :: first, second, depth, threads
  integer(omp_sched_kind) :: schedule
  integer :: chunk

  first = 0
  second = 0
  threads = 0
  !$omp parallel shared(event) reduction(+ : threads)
  threads = threads + 1
  !$omp single
  !$omp task depend(out : first) detach(event)
  first = 1
  !$omp end task
  !$omp task
  second = 1
  call omp_fulfill_event(event)
  !$omp end task
  !$omp task depend(in : first)
  if (first /= 1 .or. second /= 1) error stop 'a task did not wait for an event'
  !$omp end task
  !$omp end single
  !$omp end parallel
  if (threads /= omp_get_max_threads()) error stop 'threads are missing'

  call omp_init_nest_lock(lock)
  call omp_set_nest_lock(lock)
  depth = omp_test_nest_lock(lock)
  call omp_unset_nest_lock(lock)
  call omp_unset_nest_lock(lock)
  call omp_destroy_nest_lock(lock)
  call omp_set_schedule(omp_sched_guided, 7)
  call omp_get_schedule(schedule, chunk)
  call omp_set_num_threads(3)
  print *, depth, schedule, chunk, omp_get_max_threads(), omp_get_level(), omp_in_parallel()
end program calls
