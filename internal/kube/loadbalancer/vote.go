package loadbalancer

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
	"k8s.io/utils/ptr"
)

const (
	// voteName is the Lease with the third vote of two nodes, and edgeVoteName that of two edges.
	voteName, edgeVoteName = "fairway-speaker-vote", "fairway-edge-vote"
	// voteFor is the duration of a vote, in whole seconds. The holder counts from before its request.
	voteFor = 5 * time.Second
	// voteGuard is how much longer another node waits after it has seen the Lease's present state, because the rates of
	// clocks differ by up to 4%.
	voteGuard = voteFor / 10
	// voteNobody is the holder of a new Lease.
	voteNobody = "nobody"
)

// A LeaseVote is a node's part in the Lease that is the third voter of two nodes. It treats a Lease that the process
// before it held as another node's.
type LeaseVote struct {
	client     coordination.LeaseInterface
	name, node string // of the Lease, and of its holder
	now        func() time.Time

	mu      sync.Mutex
	seen    leaseRecord // the last state
	seenAt  time.Time   // when that state was seen first
	written bool        // this process wrote that state
}

// A leaseRecord identifies a renewal of the Lease. The zero value stands for no Lease.
type leaseRecord struct {
	holder, renewed, version string
}

func recordOf(l *coordinationv1.Lease) leaseRecord {
	r := leaseRecord{holder: ptr.Deref(l.Spec.HolderIdentity, ""), version: l.ResourceVersion}
	if l.Spec.RenewTime != nil {
		r.renewed = l.Spec.RenewTime.Format(time.RFC3339Nano)
	}
	return r
}

// NewEdgeVote returns an edge's part in the Lease that is the third voter of two edges. name is the edge's name.
func NewEdgeVote(client kubernetes.Interface, namespace, name string) *LeaseVote {
	return &LeaseVote{client: client.CoordinationV1().Leases(namespace), name: edgeVoteName, node: name, now: time.Now}
}

// Vote asks for the vote, or renews it. until is the end of this node's vote by the clock of this process. The zero
// time says that another node has the vote, or may have it.
func (v *LeaseVote) Vote(ctx context.Context) (until time.Time, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := v.now()
	l, err := v.client.Get(ctx, v.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		// A holder may not know yet that somebody has deleted the Lease. So nobody holds the new Lease, and all nodes
		// wait as long as for a holder.
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: v.name, Labels: map[string]string{"app.kubernetes.io/part-of": "fairway"}}}
		return until, v.write(ctx, l, voteNobody)
	}
	if err != nil {
		return until, fmt.Errorf("read Lease %s: %w", v.name, err)
	}
	if record := recordOf(l); record != v.seen {
		v.seen, v.seenAt, v.written = record, v.now(), false // the time after the answer: the state is at least as old
	}
	if !v.written && v.seen.holder != "" && v.now().Sub(v.seenAt) < voteFor+voteGuard {
		return until, nil
	}
	if err := v.write(ctx, l, v.node); err != nil {
		return until, err
	}
	return asked.Add(voteFor), nil
}

// write makes node the holder, unless the Lease has changed since it was read.
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
	v.seen, v.seenAt, v.written = recordOf(l), v.now(), node == v.node
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
