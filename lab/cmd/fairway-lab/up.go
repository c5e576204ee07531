package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/lab/cluster"
	"github.com/fairway-net/fairway/lab/fabric"
)

func upCommand(lab *cluster.Lab) *cobra.Command {
	o := cluster.DefaultOptions()
	var v6, dual bool
	var config string
	cmd := &cobra.Command{
		Use:        "up",
		SuggestFor: []string{"create", "start", "init"},
		Short:      "Create the cluster (does nothing if it runs)",
		Example: `  fairway-lab up --nodes 2 --proxy-mode iptables
  fairway-lab --name other up --api-port 16444 --dual-stack
  fairway-lab up --publish 8080:30080        # then curl http://127.0.0.1:8080/
  fairway-lab up --config lab.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := readConfig(cmd, config); err != nil {
				return err
			}
			switch {
			case v6 && dual:
				return errors.New("--ipv6 and --dual-stack exclude each other [choose one of them]")
			case v6:
				o.Family = fabric.IPv6
			case dual:
				o.Family = fabric.Dual
			}
			if err := makeAbsolute(cmd); err != nil {
				return err
			}
			if err := checkLike(cmd, &o); err != nil {
				return err
			}
			if !cmd.Flags().Changed("network-policy") { // as fairway install decides
				o.NetworkPolicy = o.PodNetwork != "bridge" && o.Like == ""
			}
			return lab.Up(cmd.Context(), o, cluster.NewProgress(cmd.OutOrStdout()))
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", o.Nodes, "`number` of nodes")
	f.StringVar(&o.ProxyMode, "proxy-mode", o.ProxyMode, "`mode` of the Service proxy: "+strings.Join(cluster.ProxyModes, ", "))
	f.BoolVar(&v6, "ipv6", false, "a cluster of IPv6 alone")
	f.BoolVar(&dual, "dual-stack", false, "a cluster of IPv4 and IPv6")
	f.StringVar(&o.LoadBalancer, "load-balancer", o.LoadBalancer, "`way` to give addresses to Services of type LoadBalancer: "+strings.Join(cluster.LoadBalancers, ", "))
	f.StringVar(&o.EdgeTarget, "edge-target", o.EdgeTarget, "`target` of the load balancer of --load-balancer edge, NodePorts or pods: "+strings.Join(cluster.EdgeTargets, ", "))
	f.StringVar(&o.PodNetwork, "pod-network", o.PodNetwork, "`way` to pods of other nodes: "+strings.Join(cluster.PodNetworks, ", "))
	f.StringVar(&o.CNIPlugins, "cni-plugins", o.CNIPlugins, "`dir` of the reference plugins bridge, host-local and loopback, for --pod-network bridge")
	f.IntVar(&o.Subnets, "subnets", o.Subnets, "`number` of subnets of nodes, 1 or 2: nodes with even numbers are in the second, behind a router; takes --pod-network auto, vxlan or bgp")
	f.BoolVar(&o.EgressAddresses, "egress-addresses", false, "let pods leave with the addresses of Services that ask for it, with deploy/components/egress")
	f.BoolVar(&o.Gateway, "gateway", false, "serve Gateway API and Ingress, with deploy/components/gateway; with a load balancer")
	f.BoolVar(&o.NetworkPolicy, "network-policy", true, "enforce NetworkPolicies, with deploy/components/network-policy; false with --pod-network bridge")
	f.BoolVar(&o.MetricsServer, "metrics-server", false, "serve what nodes and pods use, for kubectl top and HorizontalPodAutoscalers")
	f.StringVar(&o.KubeProxy, "kube-proxy", "", "`path` of a kube-proxy to run as a DaemonSet, as kubeadm does, instead of Fairway's proxy")
	f.StringVar(&o.Like, "like", "", "`tool` that the cluster is like when it begins, without Fairway: kubeadm")
	f.IntVar(&o.APIPort, "api-port", o.APIPort, "`port` of the API server on 127.0.0.1")
	f.StringVar(&o.Deploy, "deploy", o.Deploy, "`dir` of the manifests to apply (empty: none)")
	f.StringVar(&o.Image, "image", o.Image, "`file`, an archive, of Fairway's image (empty: none)")
	f.StringVar(&o.ImagesDir, "images-dir", o.ImagesDir, "`dir` of further image archives (empty: none)")
	f.StringArrayVar(&o.Publish, "publish", nil, "`HOSTPORT:NODEPORT` reach a NodePort at 127.0.0.1:HOSTPORT of this machine (TCP); may be repeated")
	f.StringVar(&config, "config", "", "YAML `file` with flags as fields, as in \"nodes: 2\"; flags given beside it count first")
	f.BoolVar(&o.Keep, "keep-failed", false, "keep a failed cluster for debugging")
	return cmd
}

// checkLike refuses flags that --like does not leave open, and sets kubeadm's proxy mode.
func checkLike(cmd *cobra.Command, o *cluster.Options) error {
	if o.Like != cluster.LikeKubeadm {
		return nil
	}
	for _, name := range []string{"pod-network", "load-balancer", "deploy", "egress-addresses", "network-policy"} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s: with --like %s the lab begins without Fairway [leave it out, and run fairway install later]", name, o.Like)
		}
	}
	if !cmd.Flags().Changed("proxy-mode") {
		o.ProxyMode = datapath.IPTables
	}
	return nil
}

func downCommand(lab *cluster.Lab) *cobra.Command {
	return &cobra.Command{
		Use:        "down",
		SuggestFor: []string{"delete", "destroy", "stop", "rm", "remove"},
		Short:      "Remove the cluster and all that belongs to it",
		Example: `  fairway-lab down
  fairway-lab --name other down`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.Down(cluster.NewProgress(cmd.OutOrStdout()))
		},
	}
}
