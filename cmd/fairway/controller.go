package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/kube"
)

// newController builds `fairway controller`: what is decided once for all nodes.
func newController(e env) *cobra.Command {
	var connection kube.Connection
	var identity, namespace string
	c := &cobra.Command{
		Use:   "controller",
		Short: "Write the weights of pods into EndpointSlices, for the agents of all nodes",
		Long: `Write the weights of pods into the EndpointSlices of the Services that ask for
them (fairway.net/weights), for the agents of all nodes. Of several controllers one works
at a time: that which holds the Lease fairway-controller.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if identity == "" {
				host, err := os.Hostname()
				if err != nil {
					return fmt.Errorf("read the host's name: %w [give --identity]", err)
				}
				identity = host
			}
			return runController(c.Context(), newLog(e.stderr, slog.LevelInfo), connection, namespace, identity)
		},
	}
	f := c.Flags()
	f.StringVar(&connection.Kubeconfig, "kubeconfig", "", "How to reach the API server: `file`; without it the pod's service account is used")
	f.StringVar(&connection.Master, "master", "", "`URL` of the API server, instead of the one that the kubeconfig or the service account names")
	f.BoolVar(&connection.AllowHTTP, "allow-http-api-server", false, "Accept an API server without TLS that is not on this machine")
	f.StringVar(&namespace, "lease-namespace", "kube-system", "`Namespace` of the Lease fairway-controller")
	f.StringVar(&identity, "identity", "", "`Name` of this process, as no other controller has it (default the host's name)")
	connection.UserAgent = "fairway-controller/" + version
	connection.QPS, connection.Burst = 50, 100 // one process for the cluster
	return c
}

// controllerEmptyAfter is how long the API server must say that most objects are gone.
const controllerEmptyAfter = time.Minute

func runController(ctx context.Context, log *slog.Logger, connection kube.Connection, namespace, identity string) error {
	client, err := kube.Connect(connection)
	if err != nil {
		return err
	}
	log.Info("starting", "version", version, "identity", identity)
	election := kube.Election{Log: log, Client: client, Namespace: cmp.Or(namespace, "kube-system"), Name: "fairway-controller", Identity: identity}
	return kube.Elect(ctx, election, func(ctx context.Context) error {
		events := kube.NewRecorder(log, client, identity)
		store := kube.New(kube.Config{Log: log, Client: client, EmptyAfter: controllerEmptyAfter, Problem: events.Event})
		weigher := kube.NewWeigher(log, store, events.Report)
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return events.Run(ctx) })
		g.Go(func() error { return store.Run(ctx) })
		g.Go(func() error { return weigher.Run(ctx) })
		return g.Wait()
	})
}
