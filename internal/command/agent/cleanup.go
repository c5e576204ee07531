package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/datapath/takeover"
	"github.com/fairway-net/fairway/internal/flow/conntrack/share"
	"github.com/fairway-net/fairway/internal/flow/reset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/loadbalancer/bgp"
	"github.com/fairway-net/fairway/internal/loadbalancer/bgp/peerguard"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
	"github.com/fairway-net/fairway/internal/networkpolicy/nftables"
	"github.com/fairway-net/fairway/internal/path/probe"
	"github.com/fairway-net/fairway/internal/podnetwork/hostport"
	"github.com/fairway-net/fairway/internal/podnetwork/node"
)

// cleanup removes the rules of all modes and prints what it removed. It removes the pod network only if --pod-network
// names one, because running pods need it.
func (a *agent) cleanup(ctx context.Context) error {
	if a.cfg.AfterKubeProxy {
		a.log.Info("waiting until a kube-proxy has written its rules")
		if err := takeover.WaitForKubeProxy(ctx); err != nil {
			return fmt.Errorf("cleanup: %w", err)
		}
	}
	removed, err := a.removeModes(ctx)
	network := node.New(podNetworkConfig(a.log, a.cfg))
	defer network.Close()
	pods, unread := network.Found(ctx)
	err = errors.Join(err, unread)
	if a.cfg.ConnectsPods() {
		err = errors.Join(err, network.Cleanup(ctx))
		removed, pods = append(removed, pods...), nil
	}
	policies := nftables.New()
	found, unread := policies.Found(ctx)
	if found {
		removed = append(removed, "rules of NetworkPolicies")
	}
	err = errors.Join(err, unread, policies.Delete(ctx), a.removePolicyDir())
	if err != nil {
		return fmt.Errorf("cleanup: %w", err)
	}
	if len(removed) == 0 {
		a.log.Info("nothing to remove")
	} else {
		a.log.Info("removed", "what", strings.Join(removed, ", "))
	}
	if len(pods) > 0 {
		a.log.Info("kept the pod network [add --pod-network routes to remove it]", "what", strings.Join(pods, ", "))
	}
	return nil
}

// removePolicyDir removes the socket directory of the CNI plugin and the enforcer.
func (a *agent) removePolicyDir() error {
	if err := os.Remove(nodeSocket(a.cfg.NodeName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI plugin's socket: %w", err)
	}
	_ = os.Remove(policyDir)               // fails if other nodes of this machine use it
	_ = os.Remove(filepath.Dir(policyDir)) // fails if it is a container's mount point
	return nil
}

// removeModes removes the rules of all modes, damaged ones too, and returns the modes that had rules.
func (a *agent) removeModes(ctx context.Context) (removed []string, err error) {
	held, err := modes.All().Found(ctx, a.modeOptions())
	if err != nil {
		a.log.Debug("cannot say which mode's rules are here", "err", err)
	}
	for _, dp := range held {
		removed = append(removed, "rules of mode "+dp.Info().Name)
		dp.Close()
	}
	speaker := fence.Remove(ctx)
	switch {
	case errors.Is(speaker, nft.ErrLocked):
		a.log.Info("kept the rules of the speaker, which runs", "err", speaker)
		speaker = nil
	case speaker == nil:
		speaker = errors.Join(bgp.Cleanup(ctx), peerguard.Remove(ctx))
	}
	return removed, errors.Join(speaker, modes.All().Cleanup(ctx, a.log, a.modeOptions()), reset.Cleanup(ctx), hostport.Cleanup(ctx), share.Remove(ctx), probe.RemoveStale())
}
