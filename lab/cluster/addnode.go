package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/node"
	"github.com/fairway-net/fairway/lab/pki"
)

// AddNode adds a node with the next free number to the lab, and waits until it is Ready.
func (l Lab) AddNode(ctx context.Context, p *Progress) error {
	b, unlock, err := l.resumeWhole(ctx, p)
	if err != nil {
		return err
	}
	defer unlock()
	n := 1
	for slices.Contains(b.state.nodes(), n) {
		n++
	}
	if n > fabric.MaxNodes {
		return fmt.Errorf("the lab has %d nodes: there is room for no more [%s makes room]", fabric.MaxNodes, l.Command("remove-node N"))
	}
	if err := spareInotify("a node", inotifyNode); err != nil {
		return err
	}
	ca, err := pki.Load(b.pki())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, fmt.Errorf("not ready after %s", Timeout))
	defer cancel()
	if err := b.addNode(ctx, ca, n); err != nil {
		return errors.Join(err, b.takeAway(fabric.NodeName(n)))
	}
	b.Done("%s is Ready", fabric.NodeName(n))
	return nil
}

func (b *builder) addNode(ctx context.Context, ca *pki.Authority, n int) error {
	name, began := fabric.NodeName(n), time.Now()
	if err := b.issueNode(ca, n); err != nil {
		return err
	}
	if err := b.fabric().PlugNode(b.plan, n); err != nil {
		return err
	}
	if err := b.startNode(n); err != nil {
		return err
	}
	return b.guardOne(ctx, name, func(ctx context.Context) error {
		if err := b.waitContainerd(ctx, n); err != nil {
			return err
		}
		archives, err := b.archives()
		if err != nil {
			return err
		}
		for _, archive := range b.store().Missing(archives) { // images that were built after the lab started
			if err := node.ImportImages(ctx, b.state.process(name).PID, archive); err != nil {
				return err
			}
		}
		b.Done("images loaded into %s", name)
		if !b.runsPods() {
			return nil // without manifests no node becomes Ready
		}
		if err := b.waitNode(ctx, name, began); err != nil {
			return err
		}
		return b.routePods(ctx)
	})
}

// archives lists the image archives that a node of this lab loads at its start.
func (b *builder) archives() ([]string, error) {
	var all []string
	if b.ImagesDir != "" {
		found, err := filepath.Glob(filepath.Join(b.ImagesDir, "*.tar"))
		if err != nil {
			return nil, fmt.Errorf("list images: %w", err)
		}
		all = found
	}
	for _, more := range []string{b.Image, b.kubeProxyArchive(), b.coreDNSArchive()} {
		if more != "" {
			all = append(all, more)
		}
	}
	return all, nil
}

// RemoveNode removes a node for good, as if the machine was sold. It cuts the power first.
func (l Lab) RemoveNode(ctx context.Context, name string, p *Progress) error {
	b, name, unlock, err := l.resumeNode(ctx, name, p)
	if err != nil {
		return err
	}
	defer unlock()
	if len(b.state.nodes()) == 1 {
		return fmt.Errorf("%s is the last node [%s removes the lab]", name, l.Command("down"))
	}
	_, client, err := b.client()
	if err != nil {
		return err
	}
	if err := b.takeAway(name); err != nil {
		return err
	}
	err = client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Node %s: %w", name, err)
	}
	b.Done("%s removed; its pods start elsewhere", name)
	return nil
}

// takeAway ends a node and removes the node's state and files.
func (b *builder) takeAway(name string) error {
	if err := errors.Join(b.powerOff(name), b.fabric().Mend(name)); err != nil {
		return err
	}
	b.state.forget(name)
	if err := b.save(b.state); err != nil {
		return err
	}
	if err := os.RemoveAll(b.nodeDir(name)); err != nil {
		return fmt.Errorf("remove the files of %s: %w", name, err)
	}
	return nil
}
