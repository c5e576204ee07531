package faults

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// agentRole is the name of the agents' ClusterRole and of its binding.
const agentRole = "fairway-agent"

// rightsWithdrawn deletes the binding of the agents' ClusterRole, and makes it again. What is being
// watched goes on, so the connections are cut, as when an API server is replaced.
func rightsWithdrawn(r *rig) {
	ctx, bindings := context.Background(), r.api.RbacV1().ClusterRoleBindings()
	was, err := bindings.Get(ctx, agentRole, metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	if err := bindings.Delete(ctx, agentRole, metav1.DeleteOptions{}); err != nil {
		r.Fatal(err)
	}
	r.refused()
	r.front.watched()
	r.makeChange()
	r.named(status.APIReadFailed, "forbidden")
	for _, n := range r.nodes {
		if text, err := r.get(n, "http://127.0.0.1:10249/metrics"); err != nil || !strings.Contains(text, `fairway_api_failures_total{kind="services"}`) {
			r.Errorf("no metric of %s says that reading fails: %v", n.Name, err)
		}
	}
	r.hold(60 * time.Second) // so long that agents ask seldom
	was.ResourceVersion, was.UID = "", ""
	if _, err := bindings.Create(ctx, was, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	r.whole = func() error { return r.unnamed(status.APIReadFailed) }
}

// refused waits until the API server itself knows that the agents may not list Services. It reads the rights from a watch
// of its own, and would accept an agent's new watch until then.
func (r *rig) refused() {
	r.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:kube-system:" + agentRole,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "watch", Resource: "services"},
	}}
	err := within(long/3, func() error {
		got, err := r.api.AuthorizationV1().SubjectAccessReviews().Create(context.Background(), review, metav1.CreateOptions{})
		if err == nil && got.Status.Allowed {
			err = errors.New("it is still allowed")
		}
		return err
	})
	if err != nil {
		r.Fatalf("do agents lose the right to watch Services? %v", err)
	}
}

// named waits until each agent says that something is degraded, in its status for everybody, and
// with the text in the message for root and in its log.
func (r *rig) named(reason, text string, nodes ...*node) {
	r.Helper()
	if len(nodes) == 0 {
		nodes = r.nodes
	}
	for _, n := range nodes {
		err := within(long/3, func() error {
			says, err := r.conditions(n)
			if err != nil {
				return err
			}
			if !strings.Contains(says[reason], text) {
				return fmt.Errorf("the status says %q", says)
			}
			public, err := r.get(n, "http://127.0.0.1:10256/statusz")
			if err != nil || !strings.Contains(public, reason) {
				return fmt.Errorf("/statusz says %s (%w)", public, err)
			}
			if !strings.Contains(r.agentLog(n), text) {
				return errors.New("the log does not")
			}
			return nil
		})
		if err != nil {
			r.Errorf("does the agent on %s name %s with %q? %v", n.Name, reason, text, err)
		}
	}
}

// unnamed returns an error as long as an agent says that something is degraded.
func (r *rig) unnamed(reason string) error {
	for _, n := range r.nodes {
		says, err := r.conditions(n)
		if err != nil {
			return err
		}
		if says[reason] != "" {
			return fmt.Errorf("%s still says %s: %s", n.Name, reason, says[reason])
		}
	}
	return nil
}

// conditions are what is degraded on a node, as its agent tells root.
func (r *rig) conditions(n *node) (map[string]string, error) {
	says := map[string]string{}
	err := n.Do(func() error {
		ctx, stop := context.WithTimeout(context.Background(), long/10)
		defer stop()
		now, err := status.Ask(ctx)
		for _, c := range now.Degraded {
			says[c.Reason] = c.Message
		}
		return err
	})
	return says, err
}

// broken answers 500 to all.
func (f *front) broken() {
	f.set(func(w http.ResponseWriter, r *http.Request) *http.Request {
		f.count(r)
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return nil
	})
}

// watchesEnd has the API server, or a proxy in front of it, answer each watch and end it at once, for so long that agents
// ask seldom. Then the cluster changes.
func watchesEnd(r *rig) {
	r.front.set(func(w http.ResponseWriter, req *http.Request) *http.Request {
		if req.URL.Query().Get("watch") == "" {
			return req
		}
		r.front.count(req)
		w.Header().Set("Content-Type", req.Header.Get("Accept"))
		w.WriteHeader(http.StatusOK)
		return nil
	})
	r.awaitAskers()
	r.hold(50 * time.Second)
	r.makeChange()
	r.hold(10 * time.Second)
	r.front.mend()
}

// otherCA has the API server show a certificate of another CA, which agents get to know only later. Nothing is
// said to them; they must read the file that the kubelet writes.
func otherCA(r *rig) {
	was := r.front.certificate()
	ca, cert := testnet.NewCA(r, frontAt.Addr())
	r.front.show(cert)
	r.front.watched() // on new connections
	r.makeChange()
	r.named(status.APIReadFailed, "certificate")
	r.hold(30 * time.Second)
	var files []caFile
	for _, n := range r.nodes {
		files = append(files, r.addCA(n, ca))
	}
	r.whole = func() error { return r.unnamed(status.APIReadFailed) }
	r.after = func() { // before the kubelet writes its own again
		r.front.show(was)
		r.front.set(nil)
		for _, f := range files {
			f.write(r, f.was)
		}
	}
}

// certificate is what the front shows.
func (f *front) certificate() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cert
}

// show lets the front show another certificate to who connects anew.
func (f *front) show(cert *tls.Certificate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cert = cert
}

// A caFile is the file by which the agent of a node knows the API server, as the kubelet wrote it.
type caFile struct {
	path string
	was  []byte
}

// addCA adds a CA to those that the agent of a node knows, as its kubelet does when the ConfigMap kube-root-ca.crt
// changes: by a new file in the directory that the agent has mounted read-only.
func (r *rig) addCA(n *node, ca []byte) caFile {
	r.Helper()
	found, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/var/lib/kubelet/pods/*/volumes/kubernetes.io~projected/*/..data/ca.crt", n.init))
	seen, err := os.Stat(fmt.Sprintf("/proc/%d/root/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", r.agent(n)))
	if err != nil {
		r.Fatal(err)
	}
	for _, path := range found {
		if at, err := os.Stat(path); err != nil || !os.SameFile(at, seen) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			r.Fatal(err)
		}
		f := caFile{path, text}
		f.write(r, append(append([]byte{}, text...), ca...))
		return f
	}
	r.Fatalf("no file of the kubelet on %s is the agent's CA: %v", n.Name, found)
	return caFile{}
}

func (f caFile) write(r *rig, text []byte) {
	r.Helper()
	if err := os.WriteFile(f.path+".new", text, 0o600); err != nil {
		r.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		r.Fatal(err)
	}
}
