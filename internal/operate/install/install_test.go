package install

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/deploy"
	"github.com/fairway-net/fairway/internal/kube/objects"
)

var update = flag.Bool("update", false, "write what the program says into testdata")

func installer(api API, out *bytes.Buffer) *Installer {
	return &Installer{API: api, Manifests: deploy.Files, Out: out, Version: "v1", Timeout: time.Minute, Poll: time.Microsecond}
}

// TestDecisions reads clusters out of testdata: objects in, and what the program finds and
// decides, or why it refuses, out.
//
//	NAME.txtar: options as in Options, one "field: value" a line │ objects.yaml │ want
func TestDecisions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var o Options
			if err := yaml.UnmarshalStrict(a.Comment, &o); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			i := installer(newFake(t, string(a.Files[0].Data)), &out)
			i.DryRun = true
			if err := i.Install(t.Context(), o); err != nil {
				out.WriteString("error: " + err.Error() + "\n")
			}
			if *update {
				a.Files = append(a.Files[:1], txtar.File{Name: "want", Data: out.Bytes()})
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(a.Files) != 2 || string(a.Files[1].Data) != out.String() {
				t.Errorf("it says\n%s\nwant what %s has [-update]", &out, file)
			}
		})
	}
}

// TestUnscheduled: a pod without a node is told after a while, and one with a node is not.
func TestUnscheduled(t *testing.T) {
	now := time.Now()
	pod := func(status corev1.ConditionStatus, ago time.Duration) corev1.Pod {
		return corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: status, Reason: "Unschedulable", Message: "0/1 nodes are available", LastTransitionTime: metav1.NewTime(now.Add(-ago))},
		}}}
	}
	for want, p := range map[string]corev1.Pod{
		"Unschedulable: 0/1 nodes are available": pod(corev1.ConditionFalse, time.Minute),
	} {
		if got := unscheduled(p, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, p := range []corev1.Pod{pod(corev1.ConditionFalse, time.Second), pod(corev1.ConditionTrue, time.Minute), {}} {
		if got := unscheduled(p, now); got != "" {
			t.Errorf("%+v: %q", p.Status, got)
		}
	}
}

// cluster is the objects of a file in testdata.
func cluster(t *testing.T, name string) string {
	t.Helper()
	a, err := txtar.ParseFile("testdata/" + name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	return string(a.Files[0].Data)
}

var tagged = Options{Image: product + ":v1", DNS: fairway}

// TestThereAndBack: install, upgrade and roll back leave what they say, and uninstall leaves
// the cluster as it was.
func TestThereAndBack(t *testing.T) {
	api := newFake(t, cluster(t, "kubeadm"))
	before := api.text()
	var out bytes.Buffer
	i := installer(api, &out)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
	}
	i.DryRun = true
	must(i.Install(t.Context(), tagged))
	if now := api.text(); now != before || api.writes > 0 {
		t.Fatalf("a dry run has written %d times", api.writes)
	}
	i.DryRun = false
	must(i.Install(t.Context(), tagged))
	installed := api.text()
	for _, want := range []string{"DaemonSet kube-system/fairway-agent", "fairway.net/kube-proxy: back", "replicas: 0", "REPLACE_KUBE_PROXY: \"true\""} {
		if !strings.Contains(installed, want) {
			t.Errorf("after install there is no %q", want)
		}
	}
	if err := i.Install(t.Context(), tagged); err == nil || !strings.Contains(err.Error(), "fairway upgrade") {
		t.Errorf("a second install says %v", err)
	}
	up := tagged
	up.Components, up.ProxyMode = []string{"controller", "load-balancer"}, "iptables"
	must(i.Upgrade(t.Context(), up))
	if now := api.text(); !strings.Contains(now, "Deployment kube-system/fairway-controller") || !strings.Contains(now, "PROXY_MODE: iptables") {
		t.Error("the upgrade has not added the controller, or the mode")
	}
	hash := func() string {
		o, _ := api.Get(t.Context(), objects.Ref{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: kubeSystem, Name: agentName})
		text, _, _ := unstructured.NestedString(o.Object, "spec", "template", "metadata", "annotations", settingsHash)
		return text
	}
	former := hash()
	must(i.Upgrade(t.Context(), Options{Image: product + ":v2"}))
	if now := hash(); now != former || now == "" {
		t.Errorf("the hash of the same settings was %q and is %q", former, now)
	}
	must(i.Upgrade(t.Context(), Options{RefuseExternal: no}))
	if hash() == former {
		t.Error("another setting has the same hash: no agent is restarted")
	}
	if now := api.text(); !strings.Contains(now, "PROXY_MODE: iptables") || !strings.Contains(now, "Deployment kube-system/fairway-controller") || !strings.Contains(now, "fairway:v2") {
		t.Error("an upgrade of the image has changed a setting")
	}
	must(i.Rollback(t.Context(), 1))
	if now := api.text(); strings.Contains(now, "Deployment kube-system/fairway-controller") || !strings.Contains(now, "PROXY_MODE: nftables") {
		t.Error("the controller is left after the rollback, or the mode is")
	}
	must(i.Uninstall(t.Context()))
	// What defines the kinds of others' objects stays.
	n := len(api.objects)
	api.objects = slices.DeleteFunc(api.objects, func(o *unstructured.Unstructured) bool { return slices.Contains(kept, o.GetKind()) })
	if len(api.objects) == n || !strings.Contains(out.String(), "  keep    CustomResourceDefinition ") {
		t.Error("uninstall has deleted kinds of objects, or does not say that it keeps them")
	}
	if now := api.text(); now != before {
		t.Errorf("uninstall leaves\n%s\nbefore there was\n%s", now, before)
	}
}

// TestHeldServices: Services that the controller holds by its finalizer can be deleted when it is gone, by an upgrade or
// by uninstall. What others hold, and by what, stays.
func TestHeldServices(t *testing.T) {
	const held = `apiVersion: v1
kind: Service
metadata:
  name: NAME
  namespace: default
  finalizers: [example.org/mine, service.kubernetes.io/load-balancer-cleanup]
  managedFields:
  - {manager: OWNER, operation: Apply, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: {"f:metadata": {"f:finalizers": {"v:\"service.kubernetes.io/load-balancer-cleanup\"": {}}}}}
spec: {type: LoadBalancer}
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}`
	service := func(name, owner string) string {
		return strings.NewReplacer("NAME", name, "OWNER", owner).Replace(held)
	}
	api := newFake(t, cluster(t, "kubeadm")+"\n---\n"+service("ours", "fairway-addresses")+"\n---\n"+service("cloud", "cloud-controller"))
	i := installer(api, &bytes.Buffer{})
	finalizers := func(name string) []string {
		o, _ := api.Get(t.Context(), objects.Ref{APIVersion: "v1", Kind: "Service", Namespace: "default", Name: name})
		if _, there, _ := unstructured.NestedSlice(o.Object, "status", "loadBalancer", "ingress"); !there {
			t.Errorf("Service %s has lost its address", name)
		}
		return o.GetFinalizers()
	}
	hold := func() {
		for name, owner := range map[string]string{"ours": "fairway-addresses"} {
			api.put(newFake(t, service(name, owner)).objects[0])
		}
	}
	with := tagged
	with.Components = []string{"load-balancer"}
	for _, step := range []struct {
		what string
		do   func() error
		held bool
	}{
		{"install", func() error { return i.Install(t.Context(), with) }, true},
		{"upgrade", func() error { return i.Upgrade(t.Context(), Options{ProxyMode: "iptables"}) }, true},
		{"upgrade without the component", func() error {
			without := Options{Without: []string{"load-balancer"}}
			const want = "refused: this ends announcements of load balancers' addresses: default/ours (keep the component load-balancer or edge) [--force ends them]"
			if err := i.Upgrade(t.Context(), without); err == nil || err.Error() != want {
				t.Errorf("without --force: %v, want %s", err, want)
			}
			i.Force = true
			return i.Upgrade(t.Context(), without)
		}, false},
		{"rollback", func() error { hold(); return i.Rollback(t.Context(), 2) }, true},
		{"uninstall", func() error { return i.Uninstall(t.Context()) }, false},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		want := []string{"example.org/mine"}
		if step.held {
			want = append(want, "service.kubernetes.io/load-balancer-cleanup")
		}
		if got := finalizers("ours"); !slices.Equal(got, want) {
			t.Errorf("after %s our Service has the finalizers %q, want %q", step.what, got, want)
		}
		if got := finalizers("cloud"); len(got) != 2 {
			t.Errorf("after %s another one's Service has the finalizers %q", step.what, got)
		}
	}
}

// TestCutOff ends an install, an upgrade and an uninstall at every second of their writes; all
// of them take twice as long. The next run finishes it, and after uninstall the cluster is as
// it was.
func TestCutOff(t *testing.T) {
	for at := 1; ; at += 2 {
		api := newFake(t, cluster(t, "kubeadm"))
		before := api.text()
		var out bytes.Buffer
		i := installer(api, &out)
		i.Poll = time.Microsecond
		api.failAt = at
		whole := true
		for _, do := range []func(context.Context) error{
			func(ctx context.Context) error { return i.Install(ctx, tagged) },
			func(ctx context.Context) error {
				return i.Upgrade(ctx, Options{ProxyMode: "userspace", DNS: none, ReplaceKubeProxy: no})
			},
			func(ctx context.Context) error { return i.Uninstall(ctx) },
		} {
			err := do(t.Context())
			if errors.Is(err, errCut) {
				whole, api.failAt = false, 0
				err = do(t.Context())
			}
			if err != nil {
				t.Fatalf("cut off at write %d: %v\n%s", at, err, &out)
			}
		}
		if now := api.text(); now != before {
			t.Fatalf("cut off at write %d, it leaves\n%s\nbefore there was\n%s", at, now, before)
		}
		if whole {
			if at < 40 {
				t.Errorf("only %d writes were cut off", at)
			}
			return
		}
	}
}

// TestOptionsAreFlags holds that a value that no setting has is refused with what there is.
func TestBadOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"no component \"contrller\" [choose from ":                                                                              {Components: []string{"contrller"}},
		"component \"iptables\" follows from the settings [use --proxy-mode iptables]":                                          {Components: []string{"iptables"}},
		"--set FAIRWAY_API: there is no such setting [choose from ":                                                             {Set: map[string]string{"FAIRWAY_API": "x"}},
		"component gateway: the controller makes the Services of Gateways, and is not installed [add --component load-balancer": {Image: product + ":v1", Components: []string{"gateway"}},
		"--image fairway has no tag":                                                                                            {Image: "fairway"},
	} {
		var out bytes.Buffer
		err := installer(newFake(t, cluster(t, "kubeadm")), &out).Install(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// TestContainedComponents: a component that another one contains may be named too; two that
// contain the same one exclude each other.
func TestContainedComponents(t *testing.T) {
	both, err := uncontained(deploy.Files, []string{"controller", "load-balancer", "iptables"})
	if err != nil || !slices.Equal(both, []string{"load-balancer", "iptables"}) {
		t.Errorf("%v %v", both, err)
	}
	if _, err := uncontained(deploy.Files, []string{"load-balancer", "servicelb"}); err == nil || !strings.Contains(err.Error(), "exclude each other") {
		t.Errorf("two that contain the controller: %v", err)
	}
}

// TestComponentWithSetting: a component that sets a key of the ConfigMap without a flag of its own is
// named as any other; an upgrade keeps it, and --without-component takes the key back too.
func TestComponentWithSetting(t *testing.T) {
	api := newFake(t, cluster(t, "kubeadm"))
	var out bytes.Buffer
	i := installer(api, &out)
	named := tagged
	named.Components = []string{"network-policy"}
	for _, step := range []struct {
		run  func(context.Context, Options) error
		o    Options
		want string
	}{
		{i.Install, named, `NETWORK_POLICY: "true"`},
		{i.Upgrade, Options{Image: product + ":v2"}, `NETWORK_POLICY: "true"`},
		{i.Upgrade, Options{Without: named.Components}, `NETWORK_POLICY: "false"`},
		{i.Upgrade, Options{Set: map[string]string{"NETWORK_POLICY": "true"}}, `NETWORK_POLICY: "true"`},
	} {
		if err := step.run(t.Context(), step.o); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		text := api.text()
		if !strings.Contains(text, step.want) || strings.Contains(text, "ClusterRole fairway-agent-network-policy") == strings.Contains(step.want, "false") {
			t.Errorf("after %+v: want %s, and the role with it alone", step.o, step.want)
		}
	}
}

// TestHandsBack: while kube-proxy starts, agents are there that follow the cluster and leave its
// rules alone; they are deleted after it is ready.
func TestHandsBack(t *testing.T) {
	api := newFake(t, cluster(t, "kubeadm"))
	var out bytes.Buffer
	i := installer(api, &out)
	if err := i.Install(t.Context(), tagged); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	was := ""
	api.wrote = func() {
		is, now := "gone", api.text()
		if strings.Contains(now, "DaemonSet kube-system/"+agentName) {
			is = "replace kube-proxy"
			if strings.Contains(now, `REPLACE_KUBE_PROXY: "false"`) && strings.Contains(now, "PROXY_MODE: none") {
				is = "hand over"
			}
		}
		if is = "agents " + is + ", kube-proxy "; strings.Contains(now, "fairway.net/kube-proxy: back") {
			is += "parked"
		} else {
			is += "runs"
		}
		if !strings.HasSuffix(was, is+"\n") {
			was += is + "\n"
		}
	}
	if err := i.Uninstall(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	const want = "agents replace kube-proxy, kube-proxy parked\nagents hand over, kube-proxy parked\nagents hand over, kube-proxy runs\nagents gone, kube-proxy runs\n"
	if was != want {
		t.Errorf("uninstall goes through\n%s, want\n%s", was, want)
	}
}
