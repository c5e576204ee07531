package controlplane

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Serves is the path at which kube-apiserver says that it takes every request. What it makes only
// a second later, the roles and priority classes of every cluster, is left out: bootstrap makes the same.
const Serves = Ready + "?" + withoutHooks

const withoutHooks = "exclude=poststarthook/rbac/bootstrap-roles&exclude=poststarthook/scheduling/bootstrap-system-priority-classes"

// Ready is the path at which kube-apiserver says that all is done.
const Ready = "/readyz"

// bootstrap waits until kube-apiserver serves, and makes at once the roles and priority classes without
// which no other component can start. kube-apiserver, which waits for a second first, then finds its own objects.
func (c Config) bootstrap(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", Kubeconfig(c.PKI, CertControllerManager))
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1
	// No role says yet what who may: only system:masters may all.
	config.CertData, config.KeyData = nil, nil
	config.CertFile, config.KeyFile = c.pki(CertKubeletClient+".crt"), c.pki(CertKubeletClient+".key")
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for client.Discovery().RESTClient().Get().RequestURI(Serves).Do(ctx).Error() != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return makePolicy(ctx, client)
}

// makers is how many objects are made at a time.
const makers = 4

// makePolicy makes what kube-apiserver would, of the same source.
func makePolicy(ctx context.Context, client kubernetes.Interface) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(makers)
	options := metav1.CreateOptions{}
	for _, o := range schedulingv1.SystemPriorityClasses() {
		group.Go(func() error { return ensure(ctx, client.SchedulingV1().PriorityClasses().Create, o, options) })
	}
	for _, o := range append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...) {
		group.Go(func() error { return ensure(ctx, client.RbacV1().ClusterRoles().Create, &o, options) })
	}
	for _, o := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		group.Go(func() error { return ensure(ctx, client.RbacV1().ClusterRoleBindings().Create, &o, options) })
	}
	for namespace, all := range bootstrappolicy.NamespaceRoles() {
		for _, o := range all {
			group.Go(func() error { return ensure(ctx, client.RbacV1().Roles(namespace).Create, &o, options) })
		}
	}
	for namespace, all := range bootstrappolicy.NamespaceRoleBindings() {
		for _, o := range all {
			group.Go(func() error { return ensure(ctx, client.RbacV1().RoleBindings(namespace).Create, &o, options) })
		}
	}
	return group.Wait()
}

// ensure makes an object, unless it is there. It tries again what fails: a namespace of the system may not be
// there yet.
func ensure[T metav1.Object](ctx context.Context, create func(context.Context, T, metav1.CreateOptions) (T, error), o T, options metav1.CreateOptions) error {
	const tries = 100
	for try := 1; ; try++ {
		_, err := create(ctx, o, options)
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		if try == tries {
			return fmt.Errorf("make %s: %w", o.GetName(), err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
