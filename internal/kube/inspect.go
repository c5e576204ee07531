package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/text"
)

// An Inspection is the result of a request to the API server.
type Inspection struct {
	Server  string
	Version string
	Took    time.Duration // until the first answer
	Err     error         // the reason why there was no answer
	Addr    netip.Addr    // from Server; invalid if Server has a name
	// ClusterIP says that Addr is the ClusterIP of the Service default/kubernetes.
	ClusterIP bool
	Ahead     time.Duration // our clock minus the server's clock, which has whole seconds
	Dated     bool          // the server sent its time
	// ServiceAccount says that the credentials are the pod's service account.
	ServiceAccount bool
	Forbidden      []string // kinds that an agent reads, and that these credentials may not list
	NodeKnown      bool
	// NetworkUnavailable is the message of the node's condition of this name if it is true.
	NetworkUnavailable string
	// KubeProxies is the number of pods of the DaemonSet kube-proxy; 0: none, or these credentials may not read it.
	KubeProxies int
}

// Inspect asks an API server, once, for the facts that an agent on a node depends on.
func Inspect(ctx context.Context, c Connection, node string) (Inspection, error) {
	cfg, err := c.restConfig(serviceAccount)
	if err != nil {
		return Inspection{}, err
	}
	var date string
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if err == nil && date == "" {
				date = resp.Header.Get("Date")
			}
			return resp, err
		})
	})
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return Inspection{}, fmt.Errorf("connect to the API server at %s: %w", cfg.Host, text.OneLine(err))
	}
	i := Inspection{Server: cfg.Host}
	if u, err := url.Parse(cfg.Host); err == nil {
		i.Addr, _ = netip.ParseAddr(u.Hostname())
		i.ClusterIP = u.Hostname() != "" && u.Hostname() == os.Getenv("KUBERNETES_SERVICE_HOST") // until the server's answer says more
	}
	i.ServiceAccount = c.Kubeconfig == "" && !c.Person
	start := time.Now()
	v, err := client.Discovery().ServerVersion()
	if i.Took = time.Since(start); err != nil {
		i.Err = text.RequestError(err)
		return i, nil
	}
	i.Version = v.GitVersion
	if at, err := http.ParseTime(date); err == nil {
		i.Dated, i.Ahead = true, start.Add(i.Took/2).Sub(at).Truncate(time.Second)
	}
	i.read(ctx, client, node)
	return i, nil
}

// read finds out which kinds these credentials may list, and reads the node.
func (i *Inspection) read(ctx context.Context, client kubernetes.Interface, node string) {
	few := metav1.ListOptions{Limit: 1}
	note := func(kind string, err error) bool {
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			i.Forbidden = append(i.Forbidden, kind)
		}
		return err == nil
	}
	svc, err := client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, kubernetesService, metav1.GetOptions{})
	if note("services", err) {
		i.ClusterIP = i.Addr.IsValid() && slices.Contains(append(svc.Spec.ClusterIPs, svc.Spec.ClusterIP), i.Addr.String())
	}
	_, err = client.DiscoveryV1().EndpointSlices("").List(ctx, few)
	note("endpointslices", err)
	named := metav1.ListOptions{FieldSelector: "metadata.name=" + node}
	nodes, err := client.CoreV1().Nodes().List(ctx, named)
	if note("nodes", err) {
		if i.NodeKnown = len(nodes.Items) > 0; i.NodeKnown {
			i.NetworkUnavailable = NetworkUnavailable(&nodes.Items[0])
		}
	}
	// An agent has no right to read DaemonSets, and sees a kube-proxy by its rules.
	if proxy, err := client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, "kube-proxy", metav1.GetOptions{}); err == nil {
		i.KubeProxies = int(proxy.Status.DesiredNumberScheduled)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
