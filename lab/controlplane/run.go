package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Config describes one control plane. All fields except Forward, Metrics and Published are required.
type Config struct {
	Dir      string         // etcd's data and generated files
	PKI      string         // directory written by package pki
	Address  netip.Addr     // address of kube-apiserver
	Port     int            // kube-apiserver's port
	Pods     []netip.Prefix // cluster CIDRs, primary first
	Services []netip.Prefix // service CIDRs, primary first
	Forward  net.Listener   `json:"-"` // forwarded to kube-apiserver; may belong to another network namespace
	// Metrics adds the API metrics.k8s.io.
	Metrics bool `json:",omitempty"`
	// Published are more listeners, for ports of the nodes.
	Published []Published `json:",omitempty"`
}

// Published is a listener whose connections go to the first target that accepts them.
type Published struct {
	Listener net.Listener `json:"-"`
	Targets  []string     // HOST:PORT
}

// The names of the components' certificates in PKI.
const (
	CertAPIServer         = "kube-apiserver"
	CertKubeletClient     = "kube-apiserver-kubelet-client"
	CertControllerManager = "kube-controller-manager"
	CertScheduler         = "kube-scheduler"
	CertMetrics           = "metrics-server"
	CertFrontProxy        = "front-proxy-client"
)

// Kubeconfig returns the path of a component's kubeconfig in the directory pki.
func Kubeconfig(pki, name string) string { return filepath.Join(pki, name+".conf") }

func (c Config) pki(name string) string { return filepath.Join(c.PKI, name) }

func (c Config) hostPort() string {
	return net.JoinHostPort(c.Address.String(), strconv.Itoa(c.Port))
}

// Run runs the control plane until ctx is done. It returns an error if a component ends before.
func Run(ctx context.Context, log *slog.Logger, c Config) error {
	group, ctx := errgroup.WithContext(ctx)
	start := func(name string, run func(context.Context) error) {
		group.Go(func() error {
			log.Info("start", "component", name)
			err := run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err == nil {
				err = errors.New("ended")
			}
			return fmt.Errorf("%s: %w", name, err)
		})
	}
	if err := c.startEtcd(ctx, group); err != nil {
		return err
	}
	start("kube-apiserver", c.runAPIServer)
	if c.Forward != nil {
		start("forward", forward(c.Forward, []string{c.hostPort()}))
	}
	for _, p := range c.Published {
		start("publish "+p.Listener.Addr().String(), forward(p.Listener, p.Targets))
	}
	group.Go(func() error {
		if err := c.waitReady(ctx); err != nil {
			return err
		}
		log.Info("kube-apiserver is ready")
		start("kube-controller-manager", c.runControllerManager)
		start("kube-scheduler", c.runScheduler)
		if c.Metrics {
			start("metrics-server", func(ctx context.Context) error { return c.runMetrics(ctx, log) })
		}
		return nil
	})
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// flags are the arguments of a component, without the leading dashes.
type flags map[string]string

func (f flags) args() []string {
	args := make([]string, 0, len(f))
	for name, value := range f {
		args = append(args, "--"+name+"="+value)
	}
	return args
}

func join(prefixes []netip.Prefix) string {
	s := make([]string, len(prefixes))
	for i, p := range prefixes {
		s[i] = p.String()
	}
	return strings.Join(s, ",")
}
