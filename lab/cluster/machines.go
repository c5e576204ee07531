package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/fabric"
)

// nodes returns the numbers of the lab's nodes in ascending order.
func (s *State) nodes() []int {
	var numbers []int
	for _, r := range s.Processes {
		if n, err := nodeNumber(r.Name); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// nodeNumber reads "2" and "node-2".
func nodeNumber(name string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "node-"))
	if err != nil || n < 1 || n > fabric.MaxNodes {
		return 0, fmt.Errorf("%q is not a node", name)
	}
	return n, nil
}

// node finds a node by its number or name. An error also lists others, further machines that the caller accepts.
func (s *State) node(name string, others ...string) (int, error) {
	there := s.nodes()
	n, err := nodeNumber(name)
	if err == nil && slices.Contains(there, n) {
		return n, nil
	}
	names := make([]string, len(there))
	for i, n := range there {
		names[i] = fabric.NodeName(n)
	}
	return 0, fmt.Errorf("no node %q [the lab has %s]", name, strings.Join(append(names, others...), ", "))
}

// machine finds a node or the control plane, and returns the name of its namespace.
func (b *builder) machine(name string) (string, error) {
	if name == controlPlane {
		return name, nil
	}
	n, err := b.state.node(name, controlPlane)
	if err != nil {
		return "", err
	}
	return fabric.NodeName(n), nil
}

// resume prepares a change of a lab that is up. Until unlock, no other command can change the lab.
func (l Lab) resume(ctx context.Context, p *Progress) (b *builder, unlock func(), err error) {
	if _, err := l.load(); err != nil {
		return nil, nil, err
	}
	if unlock, err = l.waitLock(ctx); err != nil {
		return nil, nil, err
	}
	s, err := l.load() // load again, because the lab may have changed before the lock
	if err == nil && !s.Ready {
		err = fmt.Errorf("the lab is still coming up, or up was killed [wait, or %s removes it]", l.Command("down"))
	}
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return &builder{Lab: l, Options: s.Options, Progress: p, plan: s.Options.plan(), state: s}, unlock, nil
}

// resumeWhole is resume for changes that need a running control plane.
func (l Lab) resumeWhole(ctx context.Context, p *Progress) (b *builder, unlock func(), err error) {
	if b, unlock, err = l.resume(ctx, p); err != nil {
		return nil, nil, err
	}
	r := b.state.process(controlPlane)
	switch {
	case !r.Alive():
		err = fmt.Errorf("%s ended [%s starts it again]", controlPlane, l.healCommand(controlPlane))
	case r.Stopped():
		err = fmt.Errorf("%s is paused [%s continues it]", controlPlane, l.healCommand(controlPlane))
	default:
		return b, unlock, nil
	}
	unlock()
	return nil, nil, err
}

// resumeNode is resumeWhole for a change of one node. It turns the node's number or name into its name.
func (l Lab) resumeNode(ctx context.Context, node string, p *Progress) (b *builder, name string, unlock func(), err error) {
	if b, unlock, err = l.resumeWhole(ctx, p); err != nil {
		return nil, "", nil, err
	}
	n, err := b.state.node(node)
	if err != nil {
		unlock()
		return nil, "", nil, err
	}
	return b, fabric.NodeName(n), unlock, nil
}

// waitLock is lock for commands that take a moment. It waits until another command has finished.
func (l Lab) waitLock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		unlock, err = l.lock()
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// RestartNode cuts a node's power, starts the node again, and waits until it is Ready.
func (l Lab) RestartNode(ctx context.Context, name string, p *Progress) error {
	b, name, unlock, err := l.resumeNode(ctx, name, p)
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.powerOff(name); err != nil {
		return err
	}
	b.Done("%s is off", name)
	if err := b.fabric().Mend(name); err != nil {
		return err
	}
	began := time.Now()
	if err := b.powerOn(ctx, name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, fmt.Errorf("not ready after %s", Timeout))
	defer cancel()
	if err := b.guardOne(ctx, name, func(ctx context.Context) error { return b.waitNode(ctx, name, began) }); err != nil {
		return err
	}
	b.Done("%s is Ready", name)
	return nil
}

// waitNode waits until a kubelet that started after began reports the node as Ready. The API server still shows the
// report of the previous kubelet, which does not count.
func (b *builder) waitNode(ctx context.Context, name string, began time.Time) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	err = apiclient.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		lease, err := client.CoordinationV1().Leases("kube-node-lease").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(began) {
			return errors.New("its kubelet has not reported")
		}
		n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := b.plainCNI(n); err != nil {
			return err
		}
		if why := unready(*n); why != "" {
			return errors.New(why)
		}
		if b.runsPods() && !b.hasProxy(name) {
			return errors.New("its proxy does not answer")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", name, err)
	}
	return nil
}
