package takeover

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fairway-net/fairway/internal/text"
)

// KubeProxy finds and removes the rules of a kube-proxy, in any of its modes, in this network namespace.
type KubeProxy struct{}

// A Remain is one part of kube-proxy's rules: a table, or the chains of one iptables program.
type Remain struct {
	name string
	// serves says that the Remain has rules of Services. A kube-proxy that has just started has some rules before it
	// reads the first Service.
	serves bool
	remove func(context.Context) error
}

// String returns the name, for example "nftables table ip kube-proxy".
func (r Remain) String() string { return r.name }

func names(all []Remain) string {
	texts := make([]string, len(all))
	for i, r := range all {
		texts[i] = r.name
	}
	return strings.Join(texts, ", ")
}

// Find returns kube-proxy's rules. If there are none, it costs a few messages to the kernel.
func (k *KubeProxy) Find(ctx context.Context) ([]Remain, error) {
	var all []Remain
	for _, find := range []func(context.Context) ([]Remain, error){k.findTables, k.findChains} {
		some, err := find(ctx)
		if err != nil {
			return nil, fmt.Errorf("look for kube-proxy's rules: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// Remove removes remains. It continues after an error.
func (k *KubeProxy) Remove(ctx context.Context, remains []Remain) error {
	var all []error
	for _, r := range remains {
		if err := r.remove(ctx); err != nil {
			all = append(all, fmt.Errorf("remove %s: %w", r.name, err))
		}
	}
	return text.OneLine(errors.Join(all...))
}
