package install

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/deploy"
	"github.com/fairway-net/fairway/internal/kube/objects"
)

// pod is a pod of an application.
const pod = `apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {containers: []}
status: {phase: Running}`

const externalIP = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIPs: [10.96.0.20], externalIPs: [192.0.2.7]}`
const weighted = `apiVersion: v1
kind: Service
metadata: {name: canary, namespace: shop, annotations: {fairway.net/weights: "true", fairway.net/egress: pods}}
spec: {clusterIPs: [10.96.0.21]}`
const policy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop}`
const metallb = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: speaker, namespace: metallb-system, labels: {app: metallb}}
spec: {selector: {matchLabels: {app: metallb}}}`
const conversion = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: bgppeers.metallb.io}
spec: {conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1]}}}`

var (
	plain    = Options{Image: product + ":v1", ClusterCIDR: "10.244.0.0/16"}
	balancer = Options{Image: plain.Image, ClusterCIDR: plain.ClusterCIDR, Components: []string{"load-balancer"}}
	all      = Options{
		Image: plain.Image, ClusterCIDR: plain.ClusterCIDR,
		Components: []string{"controller", "network-policy", "egress"}, Set: map[string]string{keyPodNetwork: routes},
	}
)

// TestLosses: a change that ends something refuses in one line, in the dry run too, writes nothing, and does it with
// Force. A change that ends nothing needs no Force.
func TestLosses(t *testing.T) {
	for _, c := range []lossCase{
		{"W4a: install ends externalIPs", "kubeadm", externalIP, nil,
			func(i *Installer) error { return i.Install(t.Context(), plain) },
			"refused: this ends externalIPs of Services: shop/web (--refuse-external-ips false keeps them, true ends them) [--force ends them]"},
		{"install that keeps them", "kubeadm", externalIP, nil,
			func(i *Installer) error {
				return i.Install(t.Context(), Options{Image: plain.Image, RefuseExternal: no})
			}, ""},
		{"install that ends them in words", "kubeadm", externalIP, nil,
			func(i *Installer) error {
				return i.Install(t.Context(), Options{Image: plain.Image, RefuseExternal: yes})
			}, ""},
		{"W5: the only DNS", "bare", "", &plain,
			func(i *Installer) error { return i.Upgrade(t.Context(), Options{DNS: none}) },
			"refused: this ends names, because Fairway's DNS is the only one: shop/web (apply a Deployment kube-system/coredns first) [--force ends them]"},
		{"DNS goes back to coredns", "kubeadm", "", &tagged,
			func(i *Installer) error { return i.Upgrade(t.Context(), Options{DNS: none}) }, ""},
		{"W6: our own pod network", "bare", "", &plain,
			func(i *Installer) error { return i.Upgrade(t.Context(), Options{PodNetwork: none}) },
			"refused: this ends the pod network, so that pods cannot be deleted and new pods do not start: shop/web (install another CNI plugin and delete the pods) [--force ends them]"},
		{"W9: nobody takes the Services over", "bare", externalIP, &plain,
			func(i *Installer) error { return i.Uninstall(t.Context()) },
			"refused: this ends addresses of Services, because no kube-proxy is here: shop/web (apply a kube-proxy first); names, because Fairway's DNS is the only one: shop/web"},
		{"uninstall hands back", "kubeadm", "", &plain,
			func(i *Installer) error { return i.Uninstall(t.Context()) }, ""},
		{"policies, egress and weights", "bare", weighted + "\n---\n" + policy, &all,
			func(i *Installer) error {
				return i.Upgrade(t.Context(), Options{Without: []string{"network-policy", "egress", "controller"}})
			},
			"refused: this ends enforcement of NetworkPolicies: shop/deny (keep the component network-policy); egress addresses of Services: shop/canary (keep the component egress); weights of pods: shop/canary (keep the component controller) [--force ends them]"},
		{"W7: beside MetalLB", "kubeadm", metallb, nil,
			func(i *Installer) error { return i.Install(t.Context(), balancer) },
			"refused: MetalLB gives addresses to Services of type LoadBalancer, too: DaemonSet metallb-system/speaker [remove it first: docs/from-metallb.md; --force, if spec.loadBalancerClass keeps their Services apart]"},
		{"MetalLB is gone, its webhook is not", "kubeadm", conversion, nil,
			func(i *Installer) error { return i.Install(t.Context(), balancer) },
			"CustomResourceDefinition bgppeers.metallb.io has a conversion webhook of another program, which would stay [once that program is removed: kubectl patch crd bgppeers.metallb.io --type merge -p '"},
		{"beside MetalLB, without addresses of ours", "kubeadm", metallb, nil,
			func(i *Installer) error { return i.Install(t.Context(), plain) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) { checkLoss(t, c) })
	}
}

// A lossCase is a change of a cluster in testdata, with an application's pod and extra objects.
type lossCase struct {
	name, cluster, extra string
	before               *Options // installed first
	do                   func(*Installer) error
	want                 string // the beginning of the refusal; "": it is done
}

func checkLoss(t *testing.T, c lossCase) {
	api := newFake(t, strings.Join([]string{cluster(t, c.cluster), c.extra, pod}, "\n---\n"))
	var out bytes.Buffer
	i := installer(api, &out)
	if c.before != nil {
		if err := i.Install(t.Context(), *c.before); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
	}
	before := api.text()
	for _, i.DryRun = range []bool{true, false} {
		err := c.do(i)
		switch {
		case c.want == "" && err != nil:
			t.Fatalf("%v\n%s", err, &out)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)):
			t.Fatalf("%v, want %s\n%s", err, c.want, &out)
		case c.want != "" && api.text() != before:
			t.Errorf("it has written although it refused")
		}
	}
	if i.Force = true; !strings.HasPrefix(c.want, "refused: ") {
		return
	}
	if err := c.do(i); err != nil {
		t.Errorf("with Force: %v\n%s", err, &out)
	}
}

// TestAdopted: install takes components over that kubectl apply -k has made, and then keeps Services' finalizers.
func TestAdopted(t *testing.T) {
	api := newFake(t, cluster(t, "kubeadm"))
	made := Options{Image: product + ":v1", Components: []string{"load-balancer", "pod-lookup"}}
	var out bytes.Buffer
	i := installer(api, &out)
	if err := i.Install(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(t.Context(), inventoryRef); err != nil { // as if kubectl had applied the objects
		t.Fatal(err)
	}
	out.Reset()
	if err := i.Install(t.Context(), Options{Image: made.Image}); err != nil {
		t.Fatal(err)
	}
	if want := "components   load-balancer, pod-lookup, replace-kube-proxy\n"; !strings.Contains(out.String(), want) {
		t.Errorf("there is no %q in\n%s", want, &out)
	}
	i.Force = true
	out.Reset()
	if err := i.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, ref := range fairwayWorkloads {
		if o, _ := api.Get(t.Context(), ref); o != nil {
			t.Errorf("uninstall leaves %s", ref)
		}
	}
}

// TestNotAdopted: what install does not take over, uninstall names.
func TestNotAdopted(t *testing.T) {
	api := newFake(t, cluster(t, "kubeadm"))
	var out bytes.Buffer
	i := installer(api, &out)
	if err := i.Install(t.Context(), tagged); err != nil {
		t.Fatal(err)
	}
	later, err := Render(deploy.Files, Settings{Image: product + ":v1", Components: []string{"load-balancer"}, Values: map[string]string{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range later {
		if slices.ContainsFunc(fairwayWorkloads, objects.RefOf(o).Same) && o.GetName() != agentName {
			api.put(o)
		}
	}
	if err := i.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := "Left, because something else made it: DaemonSet kube-system/fairway-speaker, Deployment kube-system/fairway-controller"; !strings.Contains(out.String(), want) {
		t.Errorf("there is no %q in\n%s", want, &out)
	}
}

// TestPodsByOwner: pods of Fairway's DNS have the labels that the selector of Deployment coredns wants, as kubeadm
// makes it. A take-over does not wait for them to end.
func TestPodsByOwner(t *testing.T) {
	const ours = `apiVersion: v1
kind: Pod
metadata:
  name: fairway-dns-5d4f-x
  namespace: kube-system
  labels: {k8s-app: kube-dns, pod-template-hash: 5d4f}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: fairway-dns-5d4f, uid: "1", controller: true}]`
	api := newFake(t, cluster(t, "kubeadm")+"\n---\n"+ours+"\n---\n"+strings.ReplaceAll(ours, "fairway-dns", "coredns"))
	i := installer(api, &bytes.Buffer{})
	coredns, _ := api.Get(t.Context(), coreDNSRef)
	pods, err := i.podsOf(t.Context(), coredns)
	if err != nil || len(pods) != 1 || pods[0].Name != "coredns-5d4f-x" {
		t.Errorf("the pods of coredns are %v, %v", pods, err)
	}
}

// TestPodsOfDeletedNodes: nobody waits for the pods of a node that was deleted. Pods on other nodes count.
func TestPodsOfDeletedNodes(t *testing.T) {
	const pod = `apiVersion: v1
kind: Pod
metadata:
  name: coredns-5d4f-x
  namespace: kube-system
  labels: {k8s-app: kube-dns, pod-template-hash: 5d4f}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: coredns-5d4f, uid: "1", controller: true}]
spec: {nodeName: gone}`
	api := newFake(t, cluster(t, "kubeadm")+"\n---\n"+pod)
	i := installer(api, &bytes.Buffer{})
	coredns, _ := api.Get(t.Context(), coreDNSRef)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := i.waitGone(ctx, one(coredns)); err != nil {
		t.Error(err)
	}
	there := newFake(t, cluster(t, "kubeadm")+"\n---\n"+strings.Replace(pod, "gone", "node-1", 1))
	if pods, err := installer(there, &bytes.Buffer{}).podsOnNodes(t.Context(), coredns); err != nil || len(pods) != 1 {
		t.Errorf("the pods on nodes are %v, %v", pods, err)
	}
}

// TestNoLongerServed: a change after which the cluster serves less than before fails, and names it.
func TestNoLongerServed(t *testing.T) {
	const announced = `apiVersion: metallb.io/v1beta1
kind: ServiceL2Status
metadata: {name: l2-x, namespace: metallb-system}
status: {node: node-1, serviceName: web, serviceNamespace: shop}`
	const web = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}`
	api := newFake(t, cluster(t, "kubeadm")+"\n---\n"+web)
	i := installer(api, &bytes.Buffer{})
	i.Timeout = 1e9
	with := Options{Image: product + ":v1", Components: []string{"load-balancer"}}
	if err := i.Install(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	status := newFake(t, announced).objects[0]
	api.put(status)
	api.wrote = func() {
		api.wrote = nil
		api.objects = slices.DeleteFunc(api.objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == status.GetKind() })
	}
	err := i.Upgrade(t.Context(), Options{ProxyMode: "iptables"})
	if want := "no longer served: Service shop/web: not ready after 1s"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if err := api.Delete(t.Context(), serviceRef("shop", "web")); err != nil {
		t.Fatal(err)
	}
	if err := i.Upgrade(t.Context(), Options{ProxyMode: "nftables"}); err != nil {
		t.Errorf("a Service that was deleted meanwhile: %v", err)
	}
}

// TestForeignSchema: a dry run counts the fields of a schema that it changes, and does not print them.
func TestForeignSchema(t *testing.T) {
	const metallbs = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ipaddresspools.metallb.io}
spec:
  versions:
  - name: v1beta1
    schema: {openAPIV3Schema: {description: IPAddressPool represents a pool of IP addresses, properties: {kind: {description: its kind}}}}`
	var out bytes.Buffer
	i := installer(newFake(t, cluster(t, "kubeadm")+"\n---\n"+metallbs), &out)
	i.DryRun = true
	if err := i.Install(t.Context(), balancer); err != nil {
		t.Fatal(err)
	}
	_, changed, found := strings.Cut(out.String(), "change  CustomResourceDefinition ipaddresspools.metallb.io\n")
	changed, _, _ = strings.Cut(changed, "\n  create")
	if !found || !strings.Contains(changed, "spec.versions.v1beta1.schema: ") || strings.Contains(changed, "description") {
		t.Errorf("the plan is\n%s", &out)
	}
}

// TestUpgradeBesidePlugin: with another CNI plugin, an upgrade refuses the pod network as an installation does.
func TestUpgradeBesidePlugin(t *testing.T) {
	var out bytes.Buffer
	i := installer(newFake(t, cluster(t, "kubeadm")), &out)
	if err := i.Install(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	const want = "refused: --pod-network routes: another CNI plugin connects the pods: Calico (DaemonSet kube-system/calico-node) [leave the flag out, or remove the plugin from all nodes first: docs/from-flannel.md]"
	if err := i.Upgrade(t.Context(), Options{PodNetwork: routes}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestSettingsLost: if the ConfigMap of the agents is deleted, upgrade writes it again, with the settings of the last
// revision, and does not take Fairway's own CNI plugin for another program's.
func TestSettingsLost(t *testing.T) {
	api := newFake(t, cluster(t, "bare"))
	var out bytes.Buffer
	i := installer(api, &out)
	if err := i.Install(t.Context(), Options{Image: plain.Image, ClusterCIDR: plain.ClusterCIDR, PodNetwork: "vxlan"}); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	config := objects.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: kubeSystem, Name: agentName}
	if err := api.Delete(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := i.Upgrade(t.Context(), Options{}); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if text := api.text(); !strings.Contains(text, "POD_NETWORK: vxlan") || strings.Contains(out.String(), "CNI plugin") {
		t.Errorf("upgrade says\n%s", &out)
	}
}

// TestInventoryLost: if the inventory is deleted, install adopts everything again, and uninstall starts kube-proxy.
func TestInventoryLost(t *testing.T) {
	api := newFake(t, cluster(t, "kubeadm"))
	var out bytes.Buffer
	i := installer(api, &out)
	if err := i.Install(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(t.Context(), inventoryRef); err != nil {
		t.Fatal(err)
	}
	if err := i.Install(t.Context(), plain); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if err := i.Uninstall(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if text := api.text(); strings.Contains(text, parked) {
		t.Errorf("kube-proxy does not run again:\n%s", &out)
	}
}
