package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// leases is an API server with one Lease. It may fail, before or after it did what was asked.
type leases struct {
	coordination.LeaseInterface
	have *coordinationv1.Lease
	next int
	fail func() (before, after bool)
}

var errAway = errors.New("the API server is away")

func (s *leases) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	if before, after := s.fail(); before || after {
		return nil, errAway
	}
	if s.have == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, voteName)
	}
	return s.have.DeepCopy(), nil
}

func (s *leases) Create(_ context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return s.put(l, s.have == nil)
}

func (s *leases) Update(_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return s.put(l, s.have != nil && s.have.ResourceVersion == l.ResourceVersion)
}

func (s *leases) put(l *coordinationv1.Lease, ok bool) (*coordinationv1.Lease, error) {
	before, after := s.fail()
	if before {
		return nil, errAway
	}
	if !ok {
		return nil, apierrors.NewConflict(schema.GroupResource{}, voteName, nil)
	}
	s.next++
	s.have = l.DeepCopy()
	s.have.ResourceVersion = strconv.Itoa(s.next)
	if after {
		return nil, errAway
	}
	return s.have.DeepCopy(), nil
}

// TestVote: two nodes ask for the vote every second, their clocks running at rates that differ by 4%,
// with processes that end, an API server that fails, and a Lease that is deleted: never two have it,
// and soon one has it that asks.
func TestVote(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		start, now := time.Now(), time.Duration(0)
		api := &leases{fail: func() (bool, bool) { return random.IntN(10) == 0, random.IntN(20) == 0 }}
		var nodes [2]*LeaseVote
		var until [2]time.Duration // by the true clock
		clock := func(i int) func() time.Time {
			rate := []float64{1, 1.04}[i]
			return func() time.Time { return start.Add(time.Duration(float64(now) * rate)) }
		}
		fresh := func(i int) *LeaseVote {
			return &LeaseVote{name: voteName, client: api, node: fmt.Sprint("node-", i+1), now: clock(i)}
		}
		nodes[0], nodes[1] = fresh(0), fresh(1)
		for now < 5*time.Minute {
			now += time.Duration(random.Int64N(int64(time.Second)))
			i := random.IntN(2)
			if now > 4*time.Minute { // the other one is dead, and the API server well
				i = 0
				api.fail = func() (bool, bool) { return false, false }
			}
			fault := random.IntN(60)
			if now > 4*time.Minute {
				fault = -1
			}
			switch fault {
			case 0:
				until[i], nodes[i] = 0, fresh(i) // its speaker was replaced
			case 1:
				until[i] = 0 // it has no address any more
				_ = nodes[i].ReturnVote(t.Context())
			case 2:
				api.have = nil
			}
			got, err := nodes[i].Vote(t.Context())
			if err == nil && !got.IsZero() {
				until[i] = time.Duration(float64(got.Sub(start)) / []float64{1, 1.04}[i])
			}
			if now < until[0] && now < until[1] {
				t.Fatalf("seed %d: both have the vote at %v, until %v", seed, now, until)
			}
		}
		if now > until[0] {
			t.Fatalf("seed %d: the one that is left has no vote", seed)
		}
	}
}

// TestVoteMoves: the node that is left has the vote 5.5 s after it saw the last sign of the other, at
// once if the other gave it back.
func TestVoteMoves(t *testing.T) {
	now := time.Now()
	api := &leases{fail: func() (bool, bool) { return false, false }}
	a := &LeaseVote{name: voteName, client: api, node: "node-1", now: func() time.Time { return now }}
	b := &LeaseVote{name: voteName, client: api, node: "node-2", now: func() time.Time { return now }}
	has := func(v *LeaseVote, want bool) {
		t.Helper()
		until, err := v.Vote(t.Context())
		if err != nil || until.IsZero() == want || want && until.Sub(now) != voteFor {
			t.Fatalf("%s has the vote until %v, %v", v.node, until, err)
		}
	}
	has(a, false) // it is made; somebody may have had another one
	now = now.Add(voteFor + voteGuard)
	has(a, true)
	has(b, false)
	now = now.Add(voteFor)
	has(b, false)
	has(a, true)
	now = now.Add(voteFor)
	has(b, false) // that it was renewed it sees now
	now = now.Add(voteFor + voteGuard - 1)
	has(b, false)
	now = now.Add(1)
	has(b, true)
	has(a, false)
	if err := b.ReturnVote(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(a, true)
	if err := b.ReturnVote(t.Context()); err != nil { // it is not b's
		t.Fatal(err)
	}
	has(a, true)
}
