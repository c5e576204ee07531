package controlplane

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sync/errgroup"
)

const (
	etcdURL     = "http://127.0.0.1:2379"
	etcdPeerURL = "http://127.0.0.1:2380"
)

// startEtcd starts an etcd with one member, and returns when etcd accepts requests.
func (c Config) startEtcd(ctx context.Context, group *errgroup.Group) error {
	client, err := url.Parse(etcdURL)
	if err != nil {
		return fmt.Errorf("parse etcd's address: %w", err)
	}
	peer, err := url.Parse(etcdPeerURL)
	if err != nil {
		return fmt.Errorf("parse etcd's address: %w", err)
	}
	config := embed.NewConfig()
	config.Dir = filepath.Join(c.Dir, "etcd")
	config.ListenClientUrls = []url.URL{*client}
	config.AdvertiseClientUrls = config.ListenClientUrls
	config.ListenPeerUrls = []url.URL{*peer}
	config.AdvertisePeerUrls = config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync = true
	// A member waits up to twice ElectionMs before it elects itself. The default is a second, for members on distant
	// machines.
	config.TickMs, config.ElectionMs = 20, 100
	config.LogLevel = "warn"
	config.LogOutputs = []string{"stderr"}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
	case err := <-etcd.Err():
		return fmt.Errorf("start etcd: %w", err)
	case <-ctx.Done():
		etcd.Close()
		return ctx.Err()
	}
	group.Go(func() error {
		defer etcd.Close()
		select {
		case err := <-etcd.Err():
			return fmt.Errorf("etcd: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return nil
}
