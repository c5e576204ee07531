package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

const (
	// voteName is the Lease whose holder has a vote of its own where two nodes vote, and
	// edgeVoteName that of two edges.
	voteName, edgeVoteName = "fairway-speaker-vote", "fairway-edge-vote"
	// voteFor is how long a vote lasts, in whole seconds, counted by its holder from before it asked
	// for it.
	voteFor = 5 * time.Second
	// voteGuard is what others wait for longer, from when they saw the Lease as it is: clocks run at
	// rates that differ by less than 4%.
	voteGuard = voteFor / 10
	// voteNobody holds a Lease that was just made.
	voteNobody = "nobody"
)

// A LeaseVote is a node's part in the Lease that is the third voter of two nodes. What it remembers is
// what this process saw: what a process before it held is another's.
type LeaseVote struct {
	client     coordination.LeaseInterface
	name, node string // of the Lease, and of its holder
	now        func() time.Time

	mu      sync.Mutex
	seen    leaseRecord // as it was last
	at      time.Time   // when it was first seen so
	written bool        // this process wrote it
}

// A leaseRecord tells one renewal from the next. The zero value: none was seen.
type leaseRecord struct {
	holder, renewed, version string
}

func recordOf(l *coordinationv1.Lease) leaseRecord {
	r := leaseRecord{holder: deref(l.Spec.HolderIdentity, ""), version: l.ResourceVersion}
	if l.Spec.RenewTime != nil {
		r.renewed = l.Spec.RenewTime.Format(time.RFC3339Nano)
	}
	return r
}

// NewEdgeVote returns the part of an edge of that name in the Lease, in a namespace, that is the third voter of two edges.
func NewEdgeVote(client kubernetes.Interface, namespace, name string) *LeaseVote {
	return &LeaseVote{client: client.CoordinationV1().Leases(namespace), name: edgeVoteName, node: name, now: time.Now}
}

// Vote asks for the vote, or to have it longer, and returns until when this node has it, by the
// clock of this process; the zero time: another has it, or may.
func (v *LeaseVote) Vote(ctx context.Context) (until time.Time, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := v.now()
	l, err := v.client.Get(ctx, v.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		// It may have been deleted, and have a holder who does not know yet: what is made is held
		// by nobody, and waited for as if it were.
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: v.name, Labels: map[string]string{"app.kubernetes.io/part-of": "fairway"}}}
		return until, v.write(ctx, l, voteNobody)
	}
	if err != nil {
		return until, fmt.Errorf("read Lease %s: %w", v.name, err)
	}
	if record := recordOf(l); record != v.seen {
		v.seen, v.at, v.written = record, v.now(), false // after the answer: it was so before
	}
	if !v.written && v.seen.holder != "" && v.now().Sub(v.at) < voteFor+voteGuard {
		return until, nil
	}
	if err := v.write(ctx, l, v.node); err != nil {
		return until, err
	}
	return asked.Add(voteFor), nil
}

// write makes node the holder, if the Lease is still as it was read.
func (v *LeaseVote) write(ctx context.Context, l *coordinationv1.Lease, node string) (err error) {
	renewed, seconds := metav1.NewMicroTime(v.now()), int32(voteFor/time.Second)
	l = l.DeepCopy()
	l.Spec.HolderIdentity, l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &node, &renewed, &seconds
	if l.ResourceVersion == "" {
		l, err = v.client.Create(ctx, l, metav1.CreateOptions{})
	} else {
		l, err = v.client.Update(ctx, l, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write Lease %s: %w", v.name, err)
	}
	v.seen, v.at, v.written = recordOf(l), v.now(), node == v.node
	return nil
}

// ReturnVote gives the vote back, so that the other node need not wait.
func (v *LeaseVote) ReturnVote(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.written {
		return nil
	}
	l, err := v.client.Get(ctx, v.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read Lease %s: %w", v.name, err)
	}
	if recordOf(l) != v.seen {
		return nil
	}
	return v.write(ctx, l, "")
}
