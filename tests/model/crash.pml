/* Ranks that exchange and die: the protocol of exchange.cc and shrink.cc, where any rank may die between any two of its
 * steps, and the others hear of it in any order and as late as can be. Memory is sequentially consistent here; that the
 * words are seen in the right order is the business of protocol_model_test.cc.
 *
 *   spin -a -DN=3 -DOPS=1 -DDEATHS=1 crash.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m1000000
 *
 * What holds:
 *   - nobody hangs: every living rank ends, by success, or by an error and a shrink (no invalid end states);
 *   - a line is not written again before its reader is done with it;
 *   - what a rank published before it died counts;
 *   - who succeeds has all bytes, and none that their owner had taken back;
 *   - living ranks that shrink come to the same set, each is in its own, and nobody is left out who lives.
 *
 * MUTANT 1 to 9 make one mistake each, which pan must find.
 */
#ifndef N
#define N 3 /* ranks, at most 4 */
#endif
#ifndef OPS
#define OPS 1 /* operations of each rank; then it leaves. 0: it leaves at once, or something has gone wrong and it shrinks */
#endif
#ifndef DEATHS
#define DEATHS N /* at most */
#endif
#ifndef EAGER
#define EAGER 0 /* 1: the bytes travel in the line, 0: peers copy them from the sender's memory, which waits for that */
#endif
#ifndef IMPATIENT
#define IMPATIENT 0 /* 1: the deadline of rank 0 may pass while it waits for others */
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#define SLOTS 2

#define ALL ((1 << N) - 1)
#define has(set, r) (((set) >> (r)) & 1)
#define is_peer(r) ((r) < N && (r) != me)
#define line(n, from, to) seq[(((n) % SLOTS) * N + (from)) * N + (to)]
#define is_out(r) (left[r] || told[me * N + (r)])

byte seq[SLOTS * N * N]; /* of the lines */
byte done[N];            /* the last operation whose bytes are all there */
byte copied[N * N];      /* copied[a * N + b]: the last one whose bytes a has copied from b's memory */
bool aborted[N];
bool left[N];
byte proposal[N];        /* of survivors; 0: none yet */
bool committed[N];
bool rewritten[N];       /* the rank's caller uses the buffers again that peers may be copying from */
bool dead[N];            /* the truth */
byte deaths;
bool told[N * N];        /* told[a * N + b]: a has heard from the kernel that b is dead */

#define LOSE_PATIENCE ::IMPATIENT && me == 0->goto fails

/* A wait ends badly when a peer has given up, or is gone although something is still wanted from it. */
#define GIVE_UP(r, wanted)               \
  ::is_peer(r) && aborted[r]->goto fails \
  ::is_peer(r) && is_out(r) && (wanted)->goto fails

#define TAKE(r) d_step { bad = bad || (!EAGER && rewritten[r]); arrived = arrived | (1 << (r)) }

/* Exchange::pull: who has given up may have used the memory again that was copied from. */
#define LOOK_AGAIN(r)                                                         \
  if                                                                          \
  ::EAGER->skip                                                               \
  ::!EAGER && aborted[r] && MUTANT != 3->goto fails                           \
  ::!EAGER && (!aborted[r] || MUTANT == 3)->copied[me * N + (r)] = n          \
  fi

/* The line is there; the peer has given up; or it is gone, and then the line may be there after all. */
#define RECEIVE(r)                                                   \
  ::is_peer(r) && !has(arrived, r) && line(n, r, me) == n->TAKE(r); LOOK_AGAIN(r)   \
  ::is_peer(r) && aborted[r]->goto fails                             \
  ::is_peer(r) && !has(arrived, r) && is_out(r)->if                  \
    ::MUTANT != 2 && line(n, r, me) == n->TAKE(r); LOOK_AGAIN(r)      \
    ::else->assert(line(n, r, me) != n); goto fails                  \
    fi

#define FREE(r) (!is_peer(r) || posted < SLOTS || done[r] + SLOTS > posted || MUTANT == 1)
#define ACKNOWLEDGED(r) (!is_peer(r) || copied[(r) * N + me] >= n)

/* What a look at a peer does: takes it out, adopts its final word, or takes out whom it has taken out. */
#define DROP(r) (is_out(r) && MUTANT != 6)
#define ADOPT(r) (!DROP(r) && committed[r] && has(proposal[r], me) && MUTANT != 7)
#define FOLLOW(r) (has(proposal[r], me) && (set & proposal[r]) != set)
#define USEFUL(r) (is_peer(r) && has(set, r) && (DROP(r) || ADOPT(r) || FOLLOW(r)))
#define AGREES(r) (!is_peer(r) || !has(set, r) || proposal[r] == set || MUTANT == 8)

/* Fewer states: nothing depends on what a rank knows that has ended. */
#define FORGET \
  d_step { n = 0; posted = 0; arrived = 0; bad = false; set = 0; agreed = false; r = 0 }

proctype rank(byte me) {
  byte n = 1; /* the operation that waits for its peers' lines */
  byte posted = 0; /* the last one whose lines are out: this one or the next */
  byte r;     /* a peer */
  byte arrived;
  bool bad;
  byte set = ALL; /* of the survivors, as far as this rank knows */
  bool agreed = true;
  {
    if
    ::OPS == 0->goto look
    ::OPS == 0->left[me] = true; goto ends
    ::OPS > 0->skip
    fi;
operation: /* Exchange::post */
    do
    ::posted >= n->break
    ::posted <= n && posted < OPS && FREE(0) && FREE(1) && FREE(2) && FREE(3)->
      r = 0;
      do
      ::r == N->break
      ::d_step {
          r < N;
          if
          ::r != me->
            assert(posted < SLOTS || dead[r] || done[r] + SLOTS > posted);
            line(posted + 1, me, r) = posted + 1
          ::else
          fi;
          r++
        }
      od;
      posted++
    GIVE_UP(0, posted < n && !FREE(0))
    GIVE_UP(1, posted < n && !FREE(1))
    GIVE_UP(2, posted < n && !FREE(2))
    GIVE_UP(3, posted < n && !FREE(3))
    LOSE_PATIENCE
    od;

    /* Exchange::advance */
    arrived = 1 << me;
    bad = false;
    do
    ::arrived == ALL->break
    RECEIVE(0)
    RECEIVE(1)
    RECEIVE(2)
    RECEIVE(3)
    LOSE_PATIENCE
    od;
    true;
    d_step { done[me] = n; arrived = 0 }
    do /* the peers copy from this rank's memory */
    ::EAGER->break
    ::ACKNOWLEDGED(0) && ACKNOWLEDGED(1) && ACKNOWLEDGED(2) && ACKNOWLEDGED(3)->break
    GIVE_UP(0, !EAGER && !ACKNOWLEDGED(0))
    GIVE_UP(1, !EAGER && !ACKNOWLEDGED(1))
    GIVE_UP(2, !EAGER && !ACKNOWLEDGED(2))
    GIVE_UP(3, !EAGER && !ACKNOWLEDGED(3))
    LOSE_PATIENCE
    od;

    /* Exchange::finish: who gave up in this operation */
    r = 0;
    do
    ::r == N->break
    ::r < N && r != me && aborted[r] && done[r] < n->goto fails
    ::r < N && (r == me || !aborted[r] || done[r] >= n)->r++
    od;
    assert(!bad);
    if
    ::n < OPS->n++; goto operation
    ::n == OPS->left[me] = true; goto ends
    fi;

fails:
    if
    ::MUTANT == 4->rewritten[me] = true; aborted[me] = true
    ::MUTANT == 5->rewritten[me] = true
    ::MUTANT != 4 && MUTANT != 5->
      aborted[me] = true;
      rewritten[me] = true
    fi;

    d_step { n = 0; posted = 0; arrived = 0; bad = false; r = 0 }
look: /* ShmTransport::shrink, agree_on */
    proposal[me] = set;
    do
    ::r == N->break
    ::d_step {
        r < N;
        if
        ::is_peer(r) && has(set, r)->
          if
          ::DROP(r)->set = set & ~(1 << r); agreed = false
          ::ADOPT(r)->set = proposal[r]; agreed = true; r = N - 1
          ::else->
            agreed = agreed && AGREES(r);
            if
            ::FOLLOW(r)->set = set & proposal[r]
            ::else
            fi
          fi
        ::else
        fi;
        r++;
        do /* the next one to look at */
        ::r < N && (r == me || !has(set, r))->r++
        ::else->break
        od;
        skip
      }
    od;
    if
    ::agreed
    ::d_step { !agreed && set != proposal[me]; agreed = true; r = 0 }
      goto look
    ::d_step { /* another look comes to nothing before this */
        !agreed && set == proposal[me] &&
          (USEFUL(0) || USEFUL(1) || USEFUL(2) || USEFUL(3) || (AGREES(0) && AGREES(1) && AGREES(2) && AGREES(3)));
        agreed = true;
        r = 0
      }
      goto look
    fi;
    if
    ::MUTANT == 9->committed[me] = true
    ::else->proposal[me] = set
    fi;
    d_step {
      proposal[me] = set;
      committed[me] = true;
      assert(has(set, me));
      r = 0;
      do
      ::r == N->break
      ::r < N->
        assert(dead[r] || !committed[r] || proposal[r] == set);
        assert(has(set, r) || dead[r] || left[r]);
        r++
      od
    }
ends:
    true;
    FORGET
  } unless { dead[me] -> FORGET }
}

#define KILL(r)                                                      \
  ::(r) < N && !spared && !dead[r] && !left[r]->d_step {             \
    dead[r] = true; deaths++; spared = deaths == DEATHS              \
  }
#define TELL(a, r)                                                                                       \
  ::(a) < N && (r) < N && dead[r] && !told[(a)*N + (r)] && !dead[a] && !left[a] && !committed[a]->       \
    told[(a)*N + (r)] = true

/* Kills whom it wants when it wants, and tells the others when it wants. Who has left need not die, and who has ended
 * need not be told. */
proctype kernel() {
  bool spared = DEATHS == 0; /* nobody dies any more */
end:
  do
  KILL(0)
  KILL(1)
  KILL(2)
  KILL(3)
  TELL(0, 1)
  TELL(0, 2)
  TELL(0, 3)
  TELL(1, 0)
  TELL(1, 2)
  TELL(1, 3)
  TELL(2, 0)
  TELL(2, 1)
  TELL(2, 3)
  TELL(3, 0)
  TELL(3, 1)
  TELL(3, 2)
  ::!spared->spared = true
  od
}

init {
  byte i = 0;
  atomic {
    do
    ::i == N->run kernel(); break
    ::i < N->run rank(i); i++
    od
  }
}
